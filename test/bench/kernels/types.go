package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// flavour is a kernel whose types are looked at, and that need not be booted for it.
type flavour struct {
	kernel
	cloud bool
}

// flavours are those that Debian has. Most have their filesystems in modules, the cloud's
// all but ext4; a release before 5.11 shows no types of modules.
var flavours = []flavour{
	{kernel{"amd64", "5.10", "bullseye-security"}, false},
	{kernel{"amd64", "5.10", "bullseye-security"}, true},
	{kernel{"arm64", "5.10", "bullseye"}, true},
	{kernel{"amd64", "6.1", "bookworm-security"}, false},
	{kernel{"amd64", "6.1", "bookworm-security"}, true},
	{kernel{"arm64", "6.1", "bookworm-security"}, true},
	{kernel{"amd64", "6.12", "trixie-security"}, false},
	{kernel{"amd64", "6.12", "trixie-security"}, true},
	{kernel{"arm64", "6.12", "trixie-security"}, true},
	{kernel{"amd64", "6.18", "trixie-backports"}, true},
	{kernel{"arm64", "6.18", "trixie-backports"}, true},
	{kernel{"amd64", "7.2", "forky"}, true},
	{kernel{"arm64", "7.2", "forky"}, true},
}

func (f flavour) String() string {
	if f.cloud {
		return "debian-" + f.release + "-cloud-" + f.arch
	}
	return "debian-" + f.release + "-" + f.arch
}

// typedModules are the modules whose types the programs read.
var typedModules = []string{"ext4", "xfs", "btrfs"}

// collectTypes brings the BTF of the flavours, and of this machine's kernel, to dir: for
// each a directory like /sys/kernel/btf. The test that reduces them is in package bpf.
func collectTypes(p *program.P, dir string, update bool) {
	for _, f := range flavours {
		to := filepath.Join(dir, f.String())
		if _, err := os.Stat(to); err == nil && !update {
			continue
		}
		p.Scope(func() { f.collect(p, to) })
	}
	release := strings.Split(string(must.Get(os.ReadFile(kernelRelease))(p)), ".")
	here := filepath.Join(dir, "linux-"+release[0]+"."+release[1]+"-"+runtime.GOARCH)
	must.OK(p, os.MkdirAll(here, 0o755))
	for _, name := range append([]string{"vmlinux"}, typedModules...) {
		if data, err := os.ReadFile(filepath.Join(filepath.Dir(kernelTypes), name)); err == nil {
			must.OK(p, os.WriteFile(filepath.Join(here, name), data, 0o644))
		}
	}
}

// collect leaves a whole directory or none.
func (f flavour) collect(p *program.P, to string) {
	scratch := p.TempDir()
	apt := newApt(p, scratch, f.kernel)
	cloud := ""
	if f.cloud {
		cloud = "cloud-"
	}
	// The package is named after the kernel's version, and older ones may be there.
	name := regexp.MustCompile(`^linux-image-(` + regexp.QuoteMeta(f.release) + `\.[0-9]\S*[0-9]-` + cloud + f.arch + `)$`)
	var versions []string
	for line := range strings.Lines(string(apt("apt-cache", "pkgnames", "linux-image-"+f.release+"."))) {
		if found := name.FindStringSubmatch(strings.TrimSpace(line)); found != nil {
			versions = append(versions, found[1])
		}
	}
	if len(versions) == 0 {
		p.Fatalf("%s has no kernel %s", f.suite, f)
	}
	slices.SortFunc(versions, byNumbers)
	// Since 7.1 what was in one package is in three.
	var packages []string
	for _, part := range []string{"linux-image-", "linux-binary-", "linux-modules-"} {
		full := part + versions[len(versions)-1]
		if strings.TrimSpace(string(apt("apt-cache", "pkgnames", full))) != "" {
			packages = append(packages, full)
		}
	}
	p.Logf("%s: fetching %s", f, strings.Join(packages, ", "))
	apt("apt-get", append([]string{"download"}, packages...)...)
	tree, partial := filepath.Join(scratch, "tree"), filepath.Join(scratch, "types")
	must.OK(p, os.MkdirAll(partial, 0o755))
	for _, deb := range must.Get(filepath.Glob(filepath.Join(scratch, "*.deb")))(p) {
		output(p, scratch, "dpkg-deb", "-x", deb, tree)
	}
	kernels := must.Get(filepath.Glob(filepath.Join(tree, "boot/vmlinuz-*")))(p)
	kernels = append(kernels, must.Get(filepath.Glob(filepath.Join(tree, "usr/lib/modules/*/vmlinuz")))(p)...)
	if len(kernels) == 0 {
		p.Fatalf("no kernel in %v", packages)
	}
	must.OK(p, os.WriteFile(filepath.Join(partial, "vmlinux"), typesOf(p, unpackKernel(p, must.Get(os.ReadFile(kernels[0]))(p))), 0o644))
	for _, module := range typedModules {
		files := must.Get(filepath.Glob(filepath.Join(tree, "lib/modules/*/kernel/fs", module, module+".ko*")))(p)
		files = append(files, must.Get(filepath.Glob(filepath.Join(tree, "usr/lib/modules/*/kernel/fs", module, module+".ko*")))(p)...)
		if len(files) == 0 {
			continue // built in
		}
		data := must.Get(os.ReadFile(files[0]))(p)
		if filepath.Ext(files[0]) != ".ko" {
			data = decompress(p, data)
		}
		if types := must.Get(elf.NewFile(bytes.NewReader(data)))(p).Section(".BTF"); types != nil {
			must.OK(p, os.WriteFile(filepath.Join(partial, module), must.Get(types.Data())(p), 0o644))
		}
	}
	must.OK(p, os.RemoveAll(to))
	must.OK(p, os.MkdirAll(filepath.Dir(to), 0o755))
	must.OK(p, exec.CommandContext(p.Context(), "mv", partial, to).Run()) // possibly to another filesystem
}

// byNumbers compares names whose numbers have different lengths.
func byNumbers(a, b string) int {
	pad := func(s string) string {
		return regexp.MustCompile(`\d+`).ReplaceAllStringFunc(s, func(n string) string { return fmt.Sprintf("%8s", n) })
	}
	return strings.Compare(pad(a), pad(b))
}

// unpackKernel returns what a vmlinuz has compressed: its boot protocols say where, of
// x86 and of EFI ("zboot"). Else nothing is.
func unpackKernel(p *program.P, image []byte) []byte {
	le := binary.LittleEndian
	switch {
	case len(image) > 0x250 && string(image[0x202:0x206]) == "HdrS":
		setup := (int(image[0x1f1]) + 1) * 512
		at, size := setup+int(le.Uint32(image[0x248:])), int(le.Uint32(image[0x24c:]))
		return decompress(p, image[at:at+size])
	case len(image) > 16 && string(image[4:8]) == "zimg":
		at, size := int(le.Uint32(image[8:])), int(le.Uint32(image[12:]))
		return decompress(p, image[at:at+size])
	case bytes.HasPrefix(image, []byte("\x1f\x8b")):
		return decompress(p, image)
	}
	return image
}

// decompressors are programs by how their input begins. The kernel's build appends the
// length to what they are to read, which they complain about afterwards.
var decompressors = map[string]string{
	"\x1f\x8b": "gzip", "\xfd7zXZ": "xz", "\x28\xb5\x2f\xfd": "zstd", "\x02\x21\x4c\x18": "lz4",
}

func decompress(p *program.P, data []byte) []byte {
	for magic, name := range decompressors {
		if !bytes.HasPrefix(data, []byte(magic)) {
			continue
		}
		cmd := exec.CommandContext(p.Context(), name, "-dc")
		cmd.Stdin = bytes.NewReader(data)
		out, err := cmd.Output()
		if len(out) == 0 {
			p.Fatalf("run %s: %w", name, err)
		}
		return out
	}
	p.Fatalf("compressed by something unknown: %x", data[:min(8, len(data))])
	return nil
}

// typesOf finds the BTF in a kernel: a header, and as many bytes as it says.
func typesOf(p *program.P, kernel []byte) []byte {
	magic := []byte("\x9f\xeb\x01\x00")
	for at := 0; ; at += len(magic) {
		next := bytes.Index(kernel[at:], magic)
		if next < 0 || at+next+24 > len(kernel) {
			break
		}
		at += next
		var header struct{ Magic, Length, TypesAt, Types, NamesAt, Names uint32 }
		must.OK(p, binary.Read(bytes.NewReader(kernel[at:]), binary.LittleEndian, &header))
		size := uint64(header.Length) + uint64(header.NamesAt) + uint64(header.Names)
		if header.Types < 1<<20 || header.NamesAt != header.TypesAt+header.Types || uint64(at)+size > uint64(len(kernel)) {
			continue
		}
		types := kernel[at : uint64(at)+size]
		must.Get(btf.LoadSpecFromReader(bytes.NewReader(types)))(p)
		return types
	}
	p.Fatalf("no types in the kernel")
	return nil
}

package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// kernel is one of Debian's.
type kernel struct {
	// arch is an architecture as both Debian and Go call it.
	arch string
	// release is the first two numbers of the version.
	release string
	// suite is where the newest build is. The security archive has a small
	// index, and a kernel in it at nearly all times.
	suite string
}

// all is ordered by what a hurried reader wants to know first.
var all = []kernel{
	{"amd64", "6.1", "bookworm-security"},
	{"amd64", "6.12", "trixie-security"},
	{"arm64", "6.1", "bookworm-security"},
	{"arm64", "6.12", "trixie-security"},
}

func (k kernel) String() string { return k.arch + "-" + k.release }

func choose(names []string) ([]kernel, error) {
	if len(names) == 0 {
		return all, nil
	}
	var chosen []kernel
	for _, name := range names {
		i := slices.IndexFunc(all, func(k kernel) bool { return k.String() == name })
		if i < 0 {
			return nil, fmt.Errorf("no kernel %q; there are %v", name, all)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// image is an unpacked kernel package, reduced to what a guest needs.
type image struct {
	dir     string
	version string // Debian's
}

func (i image) vmlinuz() string { return filepath.Join(i.dir, "vmlinuz") }
func (i image) modules() string { return filepath.Join(i.dir, "modules") }

func (i image) types() string { return filepath.Join(i.dir, "vmlinux.btf") }

// cacheDir is where kernels are kept: in $NODEPROBE_CACHE, or else in the user's
// cache.
func cacheDir(p *program.P) string {
	if dir := os.Getenv("NODEPROBE_CACHE"); dir != "" {
		return must.Get(filepath.Abs(filepath.Join(dir, "kernels")))(p)
	}
	return filepath.Join(must.Get(os.UserCacheDir())(p), "nodeprobe", "kernels")
}

// fetch returns the kernel from the cache or, if it is not there or an update is
// asked for, from Debian. Only complete ones are in the cache, by version.
func (k kernel) fetch(p *program.P, cache string, update bool, log io.Writer) (image, error) {
	dir := filepath.Join(cache, k.String())
	must.OK(p, os.MkdirAll(dir, 0o755))
	link := filepath.Join(dir, "current")
	if version, err := os.Readlink(link); err == nil && !update {
		return image{filepath.Join(dir, version), version}, nil
	}
	scratch := must.Get(os.MkdirTemp(dir, "fetch-"))(p)
	defer os.RemoveAll(scratch)
	apt := must.Get(newApt(p, scratch, k))(p)
	name, version, err := apt.kernelPackage(p, "linux-image-cloud-"+k.arch)
	if err != nil {
		return image{}, err
	}
	if !strings.HasPrefix(version, k.release+".") {
		return image{}, fmt.Errorf("%s has %s %s, not %s", k.suite, name, version, k.release)
	}
	i := image{filepath.Join(dir, version), version}
	if _, err := os.Stat(i.dir); err != nil {
		fmt.Fprintf(log, "%s: fetching %s %s\n", k, name, version)
		tree := must.Get(apt.unpack(p, name))(p)
		partial := image{filepath.Join(scratch, "image"), version}
		must.OK(p, partial.take(p, tree))
		// Another process may have been faster, with the same result.
		if err := os.Rename(partial.dir, i.dir); err != nil && !errors.Is(err, os.ErrExist) {
			return image{}, err
		}
	}
	must.OK(p, os.Symlink(version, filepath.Join(scratch, "current")))
	return i, os.Rename(filepath.Join(scratch, "current"), link)
}

func (i image) take(p *program.P, tree string) error {
	must.OK(p, os.MkdirAll(i.modules(), 0o755))
	vmlinuz := must.Get(only(filepath.Join(tree, "boot/vmlinuz-*")))(p)
	must.OK(p, os.Rename(vmlinuz, i.vmlinuz()))
	modules, err := only(filepath.Join(tree, "lib/modules/*"))
	if err != nil {
		// Packages since Debian 13 leave out the link from /lib.
		if modules, err = only(filepath.Join(tree, "usr/lib/modules/*")); err != nil {
			return err
		}
	}
	return takeModules(p, modules, i.modules(), wantedModules)
}

func only(pattern string) (string, error) {
	found, _ := filepath.Glob(pattern) // the patterns are good
	if len(found) != 1 {
		return "", fmt.Errorf("%d files match %s, want one", len(found), pattern)
	}
	return found[0], nil
}

// apt is apt-get with a state and lists of its own, for any architecture. The
// machine's other settings (a proxy, a mirror) stay in force.
type apt struct {
	dir  string
	args []string
}

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

func newApt(p *program.P, dir string, k kernel) (*apt, error) {
	must.Get(os.Stat(keyring))(p)
	for _, name := range []string{"lists/partial", "archives/partial"} {
		must.OK(p, os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	source := fmt.Sprintf("deb [signed-by=%s] http://deb.debian.org/debian-security %s main\n", keyring, k.suite)
	must.OK(p, os.WriteFile(filepath.Join(dir, "sources.list"), []byte(source), 0o644))
	must.OK(p, os.WriteFile(filepath.Join(dir, "status"), nil, 0o644))
	a := &apt{dir: dir, args: []string{
		"-qq",
		"-oAPT::Architecture=" + k.arch,
		"-oAPT::Architectures=" + k.arch,
		"-oDir::State=" + dir,
		"-oDir::State::Lists=" + filepath.Join(dir, "lists"),
		"-oDir::State::status=" + filepath.Join(dir, "status"),
		"-oDir::Cache=" + dir,
		"-oDir::Etc::SourceList=" + filepath.Join(dir, "sources.list"),
		"-oDir::Etc::SourceParts=/dev/null",
		"-oAcquire::Languages=none",
		"-oAcquire::Retries=3",
		// Its user could not write to our directory.
		"-oAPT::Sandbox::User=root",
	}}
	_, err := a.run(p, "apt-get", "update")
	return a, err
}

func (a *apt) run(p *program.P, command string, args ...string) (string, error) {
	return output(p, a.dir, command, append(slices.Clone(a.args), args...)...)
}

// kernelPackage returns the package that the package without a version in its
// name stands for.
func (a *apt) kernelPackage(p *program.P, meta string) (name, version string, err error) {
	text := must.Get(a.run(p, "apt-cache", "show", "--no-all-versions", meta))(p)
	for line := range strings.Lines(text) {
		if depends, found := strings.CutPrefix(line, "Depends: "); found {
			// linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2)
			f := strings.Fields(strings.NewReplacer("(=", "", ")", "", ",", " ").Replace(depends))
			if len(f) >= 2 && strings.HasPrefix(f[0], "linux-image-") {
				return f[0], f[1], nil
			}
		}
	}
	return "", "", fmt.Errorf("package %s depends on no kernel:\n%s", meta, text)
}

// unpack returns the directory with the files of a package. Nothing of it is run.
func (a *apt) unpack(p *program.P, name string) (string, error) {
	must.Get(a.run(p, "apt-get", "download", name))(p)
	deb := must.Get(only(filepath.Join(a.dir, "*.deb")))(p)
	tree := filepath.Join(a.dir, "tree")
	_, err := output(p, a.dir, "dpkg-deb", "-x", deb, tree)
	return tree, err
}

// output runs a command to its end and returns what it wrote.
func output(p *program.P, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(p.Context(), name, args...)
	cmd.Dir = dir
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run %s %s: %w\n%s%s", name, args[len(args)-1], err, stderr.String(), out)
	}
	return string(out), nil
}

// hostName returns this machine's kernel in the form release-architecture.
func hostName(p *program.P) string {
	var u unix.Utsname
	must.OK(p, unix.Uname(&u))
	f := strings.SplitN(unix.ByteSliceToString(u.Release[:]), ".", 3)
	if len(f) < 3 {
		p.Fatalf("release %q has no two numbers", f)
	}
	return f[0] + "." + f[1] + "-" + runtime.GOARCH
}

// wantedModules is for the disks and the network of the guest, and for the
// tests' loop devices. ext4 is built in.
var wantedModules = []string{"virtio_pci", "virtio_blk", "dummy", "loop"}

// takeModules copies modules, and those that they depend on, from a kernel's
// tree to a directory, with names that sort in the order in which they have to
// be inserted. Those that are built in are left out.
func takeModules(p *program.P, tree, to string, wanted []string) error {
	files := make(map[string]string)
	err := filepath.WalkDir(tree, func(path string, _ fs.DirEntry, err error) error {
		if name, _, found := strings.Cut(filepath.Base(path), ".ko"); found {
			files[moduleName(name)] = path
		}
		return err
	})
	if err != nil {
		return err
	}
	list := must.Get(os.ReadFile(filepath.Join(tree, "modules.builtin")))(p)
	builtin := make(map[string]bool)
	for path := range strings.FieldsSeq(string(list)) {
		builtin[moduleName(strings.TrimSuffix(filepath.Base(path), ".ko"))] = true
	}

	var taken []string
	var take func(name string) error
	take = func(name string) error {
		if builtin[name] || slices.Contains(taken, name) {
			return nil
		}
		if files[name] == "" {
			return fmt.Errorf("no module %s in %s", name, tree)
		}
		object := must.Get(readModule(p, files[name]))(p)
		depends := moduleDepends(p, object)
		for _, d := range depends {
			must.OK(p, take(d))
		}
		taken = append(taken, name)
		return os.WriteFile(filepath.Join(to, fmt.Sprintf("%02d-%s.ko", len(taken), name)), object, 0o644)
	}
	for _, name := range wanted {
		must.OK(p, take(name))
	}
	return nil
}

func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

func readModule(p *program.P, path string) ([]byte, error) {
	if strings.HasSuffix(path, ".xz") {
		text, err := output(p, filepath.Dir(path), "xz", "-dc", path)
		return []byte(text), err
	}
	return os.ReadFile(path)
}

// moduleDepends reads the names of the modules that a module needs. The packages
// have no modules.dep: depmod makes it where they are installed.
func moduleDepends(p *program.P, object []byte) []string {
	f := must.Get(elf.NewFile(bytes.NewReader(object)))(p)
	section := f.Section(".modinfo")
	if section == nil {
		p.Fatal("no section .modinfo")
	}
	info := must.Get(section.Data())(p)
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		if list, found := bytes.CutPrefix(entry, []byte("depends=")); found {
			return strings.FieldsFunc(moduleName(string(list)), func(r rune) bool { return r == ',' })
		}
	}
	return nil
}

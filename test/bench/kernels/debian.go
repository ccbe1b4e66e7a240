package main

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

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
// asked for, from Debian. Only complete ones are in the cache, by version and by what
// is taken of a package.
func (k kernel) fetch(p *program.P, cache string, update bool) image {
	dir := filepath.Join(cache, k.String())
	must.OK(p, os.MkdirAll(dir, 0o755))
	link := filepath.Join(dir, "current")
	taken := fmt.Sprintf("_%08x", crc32.ChecksumIEEE([]byte(strings.Join(wantedModules, " "))))
	if name, err := os.Readlink(link); err == nil && strings.HasSuffix(name, taken) && !update {
		return image{filepath.Join(dir, name), strings.TrimSuffix(name, taken)}
	}
	scratch := must.Get(os.MkdirTemp(dir, "fetch-"))(p)
	p.Cleanup(func() { must.Note(p, os.RemoveAll(scratch)) })
	apt := newApt(p, scratch, k)
	// The package without a version in its name depends on the newest kernel's:
	// linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2).
	text := apt("apt-cache", "show", "--no-all-versions", "linux-image-cloud-"+k.arch)
	found := regexp.MustCompile(`(?m)^Depends:.* (linux-image-\S+) \(= ([^)]+)\)`).FindStringSubmatch(string(text))
	if found == nil || !strings.HasPrefix(found[2], k.release+".") {
		p.Fatalf("%s has no kernel %s:\n%s", k.suite, k.release, text)
	}
	name, version := found[1], found[2]
	i := image{filepath.Join(dir, version+taken), version}
	if _, err := os.Stat(i.dir); err != nil {
		p.Logf("%s: fetching %s %s", k, name, version)
		apt("apt-get", "download", name)
		tree, partial := filepath.Join(scratch, "tree"), image{filepath.Join(scratch, "image"), version}
		// Nothing of the package is run.
		output(p, scratch, "dpkg-deb", "-x", only(p, filepath.Join(scratch, "*.deb")), tree)
		partial.take(p, tree)
		// Another process may have been faster, with the same result.
		if err := os.Rename(partial.dir, i.dir); !errors.Is(err, os.ErrExist) {
			must.OK(p, err)
		}
	}
	must.OK(p, os.Symlink(filepath.Base(i.dir), filepath.Join(scratch, "current")))
	must.OK(p, os.Rename(filepath.Join(scratch, "current"), link))
	return i
}

// wantedModules are for the disks and the network of the guest, and for the tests'
// loop devices. What a kernel has built in has no file. ext4 is built into all.
var wantedModules = []string{
	"virtio", "virtio_ring", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "virtio_blk",
	"failover", "net_failover", "virtio_net", "dummy", "loop",
}

func (i image) take(p *program.P, tree string) {
	must.OK(p, os.MkdirAll(i.modules(), 0o755))
	must.OK(p, os.Rename(only(p, filepath.Join(tree, "boot/vmlinuz-*")), i.vmlinuz()))
	// In lib before Debian 13, in usr/lib since.
	must.OK(p, filepath.WalkDir(tree, func(path string, _ fs.DirEntry, err error) error {
		name, compressed, found := strings.Cut(filepath.Base(path), ".ko")
		if err != nil || !found || !slices.Contains(wantedModules, strings.ReplaceAll(name, "-", "_")) {
			return err
		}
		to := filepath.Join(i.modules(), name+".ko")
		if compressed == ".xz" {
			return os.WriteFile(to, output(p, tree, "xz", "-dc", path), 0o644)
		}
		return os.Rename(path, to)
	}))
}

func only(p *program.P, pattern string) string {
	found := must.Get(filepath.Glob(pattern))(p)
	if len(found) != 1 {
		p.Fatalf("%d files match %s, want one", len(found), pattern)
	}
	return found[0]
}

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// newApt returns apt-get with a state and lists of its own below dir, for any
// architecture. The machine's other settings (a proxy, a mirror) stay in force.
func newApt(p *program.P, dir string, k kernel) (run func(command string, args ...string) []byte) {
	must.Get(os.Stat(keyring))(p)
	for _, name := range []string{"lists/partial", "archives/partial"} {
		must.OK(p, os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	archive := "debian"
	if strings.HasSuffix(k.suite, "-security") {
		archive += "-security"
	}
	source := fmt.Sprintf("deb [signed-by=%s] http://deb.debian.org/%s %s main\n", keyring, archive, k.suite)
	must.OK(p, os.WriteFile(filepath.Join(dir, "sources.list"), []byte(source), 0o644))
	must.OK(p, os.WriteFile(filepath.Join(dir, "status"), nil, 0o644))
	options := []string{
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
	}
	run = func(command string, args ...string) []byte {
		return output(p, dir, command, append(slices.Clone(options), args...)...)
	}
	run("apt-get", "update")
	return run
}

// output runs a command to its end and returns what it wrote to its stdout.
func output(p *program.P, dir, name string, args ...string) []byte {
	cmd := exec.CommandContext(p.Context(), name, args...)
	cmd.Dir = dir
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		p.Fatalf("run %s %s: %w\n%s%s", name, args[len(args)-1], err, &stderr, out)
	}
	return out
}

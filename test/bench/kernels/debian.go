package main

import (
	"errors"
	"fmt"
	"hash/crc32"
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
	// suite is where the newest build is. The security archive has a kernel in it at
	// nearly all times.
	suite string
}

// all is ordered by what a hurried reader wants to know first.
var all = []kernel{
	{"amd64", "6.1", "bookworm-security"},
	{"amd64", "6.12", "trixie-security"},
	{"arm64", "6.1", "bookworm-security"},
	{"arm64", "6.12", "trixie-security"},
	{"amd64", "5.10", "bullseye-security"},
}

// old reports whether it is from before 5.15, and so has no timers for programs, nor stalls
// of all that want a CPU.
func (k kernel) old() bool { return k.release == "5.10" }

func (k kernel) String() string { return k.arch + "-" + k.release }

// image is an unpacked kernel package, reduced to what a guest needs, with the tools that
// make its filesystems.
type image struct {
	dir     string
	version string // Debian's
}

func (i image) vmlinuz() string { return filepath.Join(i.dir, "vmlinuz") }
func (i image) modules() string { return filepath.Join(i.dir, "modules") }
func (i image) tools() string   { return filepath.Join(i.dir, "tools") }

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
// is taken of the packages.
func (k kernel) fetch(p *program.P, cache string, update bool) image {
	dir := filepath.Join(cache, k.String())
	must.OK(p, os.MkdirAll(dir, 0o755))
	link := filepath.Join(dir, "current")
	taken := fmt.Sprintf("_%08x", crc32.ChecksumIEEE(fmt.Append(nil, bootModules, lateModules, tools)))
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
		partial.takeModules(p, tree)
		must.OK(p, os.Rename(only(p, filepath.Join(tree, "boot/vmlinuz-*")), partial.vmlinuz()))
		apt("apt-get", append([]string{"install", "--download-only", "--no-install-recommends", "-y"}, toolPackages...)...)
		for _, deb := range must.Get(filepath.Glob(filepath.Join(scratch, "archives/*.deb")))(p) {
			output(p, scratch, "dpkg-deb", "-x", deb, filepath.Join(scratch, "tools"))
		}
		partial.takeTools(p, filepath.Join(scratch, "tools"))
		// Another process may have been faster, with the same result.
		if err := os.Rename(partial.dir, i.dir); !errors.Is(err, os.ErrExist) {
			must.OK(p, err)
		}
	}
	must.OK(p, os.Symlink(filepath.Base(i.dir), filepath.Join(scratch, "current")))
	must.OK(p, os.Rename(filepath.Join(scratch, "current"), link))
	return i
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
	// The tools come from the release itself.
	const source = "deb [signed-by=%s] http://deb.debian.org/%s %s main\n"
	release, security := strings.CutSuffix(k.suite, "-security")
	sources := fmt.Appendf(nil, source, keyring, "debian", release)
	if security {
		sources = fmt.Appendf(sources, source, keyring, "debian-security", k.suite)
	}
	must.OK(p, os.WriteFile(filepath.Join(dir, "sources.list"), sources, 0o644))
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

// Command kernels boots Debian's kernels under qemu, runs the tests of package
// bpf and nodeprobe itself on each, and says what worked.
//
//	go run ./bench/kernels                  # all of them
//	go run ./bench/kernels amd64-6.1        # one, in well under two minutes
//	go run ./bench/kernels -types DIR       # only bring their BTF to DIR
//
// It needs no privilege and no KVM, and leaves the machine's packages alone:
// kernels come from Debian's archive by apt-get with lists of its own, and are
// kept in the user's cache. The same program is the guests' /init,
// /bin/true and /bin/trial.
package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

func main() {
	switch {
	case os.Getpid() == 1 && os.Args[0] == initPath:
		guest()
	case filepath.Base(os.Args[0]) == filepath.Base(truePath):
		return
	case os.Args[0] == trialPath:
		if err := trial(); err != nil {
			fmt.Fprintln(os.Stderr, "trial:", err)
			os.Exit(1)
		}
		return
	}
	program.Main("kernels", run)
}

// options are the flags.
type options struct {
	update  bool
	verbose bool
	types   string
}

func run(p *program.P) {
	var opts options
	p.Flags.BoolVar(&opts.update, "update", false, "look for newer packages than those in the cache")
	p.Flags.BoolVar(&opts.verbose, "v", false, "print what the guests write to their console")
	p.Flags.StringVar(&opts.types, "types", "", "test nothing, but write each kernel's BTF, and this machine's, to `directory`")
	kernels := must.Get(choose(p.ParseNames()))(p)
	root := filepath.Dir(must.Get(build.Root())(p))
	cache, scratch := cacheDir(p), p.TempDir()
	if opts.types != "" {
		collectTypes(p, kernels, cache, root, scratch, opts)
		return
	}
	var summary strings.Builder
	for _, k := range kernels {
		start := time.Now()
		r := &report{kernel: k}
		err := p.Try(func() { testOn(p, r, cache, root, filepath.Join(scratch, k.String()), opts) })
		if p.Context().Err() != nil {
			return
		}
		if err != nil {
			r.fail("%v", err)
		}
		r.print(p.Out)
		if len(r.failures) > 0 {
			p.Errorf("failed on %s", k)
		}
		fmt.Fprintf(&summary, "%s, %s in all\n", r.line(), time.Since(start).Round(time.Second))
	}
	fmt.Fprintf(p.Out, "\n%s", &summary)
}

// testOn runs everything on one kernel.
func testOn(p *program.P, r *report, cache, root, scratch string, opts options) {
	k := r.kernel
	must.OK(p, os.MkdirAll(scratch, 0o755))
	image := must.Get(k.fetch(p, cache, opts.update, p.Progress))(p)
	r.version = image.version
	p.Logf("%s: building", k)
	files := must.Get(payload(p, k, root, scratch))(p)
	m := machine{kernel: k, image: image, files: files, plan: fullPlan}
	if opts.verbose {
		m.console = p.Out
	}
	p.Logf("%s: booting Debian's %s", k, image.version)
	res := m.run(p, scratch)
	// For -types, as it is there.
	keepTypes(p, image, res)
	must.OK(p, r.judge(p.Context(), res))
}

// fullPlan runs the tests first: the snapshot then has OOM kills to count.
var fullPlan = plan{
	Steps: []step{
		{Name: "bpf tests", Dir: "/src/bpf", Args: []string{"/bin/bpf.test", "-test.v=test2json", "-test.timeout=8m"}},
		{Name: "preflight", Dir: "/", Args: []string{"/bin/nodeprobe", "preflight"}},
		{Name: "preflight json", Dir: "/", Args: []string{"/bin/nodeprobe", "preflight", "-o", "json"}},
		{Name: "trial", Dir: "/", Args: []string{trialPath}},
		{Name: "snapshot", Dir: "/", Args: []string{"/bin/nodeprobe", "snapshot", "-o", "json"}},
	},
	Files: []string{"/proc/meminfo", "/proc/vmstat", "/proc/sys/kernel/osrelease", kernelTypes},
}

// collectTypes writes the full BTF of each kernel to a directory, for the test
// helper in package bpf that reduces them.
func collectTypes(p *program.P, kernels []kernel, cache, root, scratch string, opts options) {
	must.OK(p, os.MkdirAll(opts.types, 0o755))
	for _, k := range kernels {
		image := must.Get(k.fetch(p, cache, opts.update, p.Progress))(p)
		if _, err := os.Stat(image.types()); err != nil {
			dir := filepath.Join(scratch, k.String())
			must.OK(p, os.MkdirAll(dir, 0o755))
			init := must.Get(buildInit(p, k, root, dir))(p)
			m := machine{kernel: k, image: image, files: []file{init}, plan: plan{Files: []string{kernelTypes}}}
			p.Logf("%s: booting Debian's %s", k, image.version)
			res := m.run(p, dir)
			keepTypes(p, image, res)
		}
		copyFile(p, filepath.Join(opts.types, k.release+"-"+k.arch+".btf"), image.types())
	}
	// The machine that the maintainers test on has a newer kernel than Debian.
	if _, err := os.Stat(kernelTypes); err == nil {
		copyFile(p, filepath.Join(opts.types, hostName(p)+".btf"), kernelTypes)
	}
}

func keepTypes(p *program.P, i image, res *results) {
	types := res.files[kernelTypes]
	if len(types) == 0 {
		p.Fatalf("guest brought no %s", kernelTypes)
	}
	writeFile(p, i.types(), types)
}

func copyFile(p *program.P, to, from string) { writeFile(p, to, must.Get(os.ReadFile(from))(p)) }

// writeFile leaves a whole file or none.
func writeFile(p *program.P, name string, data []byte) {
	must.OK(p, os.WriteFile(name+".partial", data, 0o644))
	must.OK(p, os.Rename(name+".partial", name))
}

func payload(p *program.P, k kernel, root, scratch string) ([]file, error) {
	init := must.Get(buildInit(p, k, root, scratch))(p)
	// The tests start it to count forks.
	files := []file{init, {name: truePath, from: init.from}, {name: trialPath, from: init.from}}
	nodeprobe, test := filepath.Join(scratch, "nodeprobe"), filepath.Join(scratch, "bpf.test")
	for _, args := range [][]string{
		{"build", "-o", nodeprobe, "./cmd/nodeprobe"},
		{"test", "-c", "-o", test, "./bpf"},
	} {
		must.OK(p, goRun(p, k, root, args))
	}
	files = append(files, file{name: "/bin/nodeprobe", from: nodeprobe}, file{name: "/bin/bpf.test", from: test})

	// A guest has no compiler. Where this machine has none either, the tests that
	// take these objects are skipped.
	bpf := filepath.Join(root, "bpf")
	sources := must.Get(filepath.Glob(filepath.Join(bpf, "testdata", "*.bpf.c")))(p)
	for _, source := range sources {
		name := strings.TrimSuffix(filepath.Base(source), ".bpf.c") + ".o"
		object := filepath.Join(scratch, name)
		if _, err := output(p, bpf, "clang", "-O2", "-g", "-mcpu=v3", "-target", "bpf", "-c", source, "-o", object); err == nil {
			files = append(files, file{name: "/src/bpf/testdata/" + name, from: object})
		}
	}
	// Tests read the sources beside them.
	err := filepath.WalkDir(bpf, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		files = append(files, file{name: "/src/" + filepath.ToSlash(name), from: path})
		return err
	})
	return files, err
}

func buildInit(p *program.P, k kernel, root, scratch string) (file, error) {
	name := filepath.Join(scratch, "init")
	err := goRun(p, k, filepath.Join(root, "test"), []string{"build", "-o", name, "./bench/kernels"})
	return file{name: initPath, from: name}, err
}

// goRun runs the go command for the guest's architecture, without what the user
// has set for other builds.
func goRun(p *program.P, k kernel, dir string, args []string) error {
	args = append([]string{args[0], "-trimpath", "-ldflags=-s -w"}, args[1:]...)
	cmd := exec.CommandContext(p.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+k.arch, "GOFLAGS=-buildvcs=false", "GOWORK=off")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %v: %w\n%s", args, err, out)
	}
	return nil
}

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
	"context"
	"errors"
	"fmt"
	"io"
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
	cache, scratch := must.Get(cacheDir())(p), p.TempDir()
	if opts.types != "" {
		must.OK(p, collectTypes(p.Context(), kernels, cache, root, scratch, opts, p.Progress))
		return
	}
	var summary strings.Builder
	for _, k := range kernels {
		start := time.Now()
		r, err := testOn(p.Context(), k, cache, root, filepath.Join(scratch, k.String()), opts, p.Out, p.Progress)
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

// testOn runs everything on one kernel. Its report is never nil.
func testOn(ctx context.Context, k kernel, cache, root, scratch string, opts options, stdout, stderr io.Writer) (*report, error) {
	r := &report{kernel: k}
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		return r, err
	}
	image, err := k.fetch(ctx, cache, opts.update, stderr)
	if err != nil {
		return r, err
	}
	r.version = image.version
	fmt.Fprintf(stderr, "%s: building\n", k)
	files, err := payload(ctx, k, root, scratch)
	if err != nil {
		return r, err
	}
	m := machine{kernel: k, image: image, files: files, plan: fullPlan}
	if opts.verbose {
		m.console = stdout
	}
	fmt.Fprintf(stderr, "%s: booting Debian's %s\n", k, image.version)
	res, err := m.run(ctx, scratch)
	if err != nil {
		return r, err
	}
	// For -types, as it is there.
	if err := keepTypes(image, res); err != nil {
		return r, err
	}
	return r, r.judge(ctx, res)
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
func collectTypes(ctx context.Context, kernels []kernel, cache, root, scratch string, opts options, stderr io.Writer) error {
	if err := os.MkdirAll(opts.types, 0o755); err != nil {
		return err
	}
	for _, k := range kernels {
		image, err := k.fetch(ctx, cache, opts.update, stderr)
		if err != nil {
			return err
		}
		if _, err := os.Stat(image.types()); err != nil {
			dir := filepath.Join(scratch, k.String())
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			init, err := buildInit(ctx, k, root, dir)
			if err != nil {
				return err
			}
			m := machine{kernel: k, image: image, files: []file{init}, plan: plan{Files: []string{kernelTypes}}}
			fmt.Fprintf(stderr, "%s: booting Debian's %s\n", k, image.version)
			res, err := m.run(ctx, dir)
			if err != nil {
				return err
			}
			if err := keepTypes(image, res); err != nil {
				return err
			}
		}
		if err := copyFile(filepath.Join(opts.types, k.release+"-"+k.arch+".btf"), image.types()); err != nil {
			return err
		}
	}
	// The machine that the maintainers test on has a newer kernel than Debian.
	name, err := hostName()
	if err != nil {
		return err
	}
	if err := copyFile(filepath.Join(opts.types, name+".btf"), kernelTypes); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func keepTypes(i image, res *results) error {
	types := res.files[kernelTypes]
	if len(types) == 0 {
		return fmt.Errorf("guest brought no %s", kernelTypes)
	}
	return writeFile(i.types(), types)
}

func copyFile(to, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return writeFile(to, data)
}

// writeFile leaves a whole file or none.
func writeFile(name string, data []byte) error {
	if err := os.WriteFile(name+".partial", data, 0o644); err != nil {
		return err
	}
	return os.Rename(name+".partial", name)
}

func payload(ctx context.Context, k kernel, root, scratch string) ([]file, error) {
	init, err := buildInit(ctx, k, root, scratch)
	if err != nil {
		return nil, err
	}
	// The tests start it to count forks.
	files := []file{init, {name: truePath, from: init.from}, {name: trialPath, from: init.from}}
	nodeprobe, test := filepath.Join(scratch, "nodeprobe"), filepath.Join(scratch, "bpf.test")
	for _, args := range [][]string{
		{"build", "-o", nodeprobe, "./cmd/nodeprobe"},
		{"test", "-c", "-o", test, "./bpf"},
	} {
		if err := goRun(ctx, k, root, args); err != nil {
			return nil, err
		}
	}
	files = append(files, file{name: "/bin/nodeprobe", from: nodeprobe}, file{name: "/bin/bpf.test", from: test})

	// A guest has no compiler. Where this machine has none either, the tests that
	// take these objects are skipped.
	bpf := filepath.Join(root, "bpf")
	sources, err := filepath.Glob(filepath.Join(bpf, "testdata", "*.bpf.c"))
	if err != nil {
		return nil, err
	}
	for _, source := range sources {
		name := strings.TrimSuffix(filepath.Base(source), ".bpf.c") + ".o"
		object := filepath.Join(scratch, name)
		if _, err := output(ctx, bpf, "clang", "-O2", "-g", "-mcpu=v3", "-target", "bpf", "-c", source, "-o", object); err == nil {
			files = append(files, file{name: "/src/bpf/testdata/" + name, from: object})
		}
	}
	// Tests read the sources beside them.
	err = filepath.WalkDir(bpf, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		files = append(files, file{name: "/src/" + filepath.ToSlash(name), from: path})
		return err
	})
	return files, err
}

func buildInit(ctx context.Context, k kernel, root, scratch string) (file, error) {
	name := filepath.Join(scratch, "init")
	err := goRun(ctx, k, filepath.Join(root, "test"), []string{"build", "-o", name, "./bench/kernels"})
	return file{name: initPath, from: name}, err
}

// goRun runs the go command for the guest's architecture, without what the user
// has set for other builds.
func goRun(ctx context.Context, k kernel, dir string, args []string) error {
	args = append([]string{args[0], "-trimpath", "-ldflags=-s -w"}, args[1:]...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+k.arch, "GOFLAGS=-buildvcs=false", "GOWORK=off")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %v: %w\n%s", args, err, out)
	}
	return nil
}

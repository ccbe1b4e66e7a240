// Command kernels boots Debian's kernels under qemu, runs the tests of package
// bpf and nodeprobe itself on each, and prints what worked.
//
//	go run ./bench/kernels                  # all of them
//	go run ./bench/kernels amd64-6.1        # one, in four minutes
//	go run ./bench/kernels -run TestDisk amd64-6.12 arm64-6.12
//	go run ./bench/kernels storm-amd64-6.1  # thrashing until the kernel kills, beside a control plane
//	go run ./bench/kernels -types DIR       # only bring the BTF of these and more to DIR
//
// It needs no privilege and no KVM, and leaves the machine's packages alone:
// kernels, and the tools that make the filesystems under test, come from Debian's
// archive by apt-get with lists of its own, and are kept in the user's cache. The same
// program is the guests' /init, /sbin/modprobe, /bin/true and /bin/trial.
package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

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
		program.Main("trial", trial)
		return
	case os.Args[0] == modprobePath:
		program.Main("modprobe", modprobe)
		return
	case os.Args[0] == actorPath:
		program.Main("actor", actor)
		return
	case parts[filepath.Base(os.Args[0])] != "":
		program.Main("part", play)
		return
	}
	program.Main("kernels", run)
}

// bench is a run of the program.
type bench struct {
	*program.P
	update, verbose      bool
	only                 string // of bpf's tests, a regular expression; "" is all, and the other steps
	root, cache, scratch string
}

func run(p *program.P) {
	b := &bench{P: p}
	p.Flags.BoolVar(&b.update, "update", false, "look for newer packages than those in the cache")
	p.Flags.BoolVar(&b.verbose, "v", false, "print what the guests write to their console")
	p.Flags.StringVar(&b.only, "run", "", "run none but those of bpf's tests that match a `regexp`")
	types := p.Flags.String("types", "", "test nothing, but bring the BTF of all kernels in types.go, and this machine's, to `directory`")
	names := p.ParseNames()
	var chosen []*report
	for _, k := range all {
		for _, r := range []*report{{kernel: k}, {kernel: k, storm: true}} {
			// Not the storm on what takes longest to emulate, unless it is asked for.
			if len(names) == 0 && (!r.storm || k.arch != "arm64") || slices.Contains(names, r.name()) {
				chosen = append(chosen, r)
			}
		}
	}
	if len(names) > 0 && len(chosen) != len(names) {
		p.Fatalf("no kernel for one of %q; there are %v, each with storm- before it too", names, all)
	}
	b.root, b.cache, b.scratch = build.RootForTest(p), cacheDir(p), p.TempDir()
	if *types != "" {
		collectTypes(p, *types, b.update)
		return
	}
	var summary strings.Builder
	for _, r := range chosen {
		do := b.test
		if r.storm {
			do = b.storm
		}
		if err := p.Try(func() { do(r) }); err != nil {
			r.fail("%v", err)
		}
		must.OK(p, context.Cause(p.Context()))
		r.print(p.Out)
		if len(r.failures) > 0 {
			p.Errorf("failed: %s", r.name())
		}
		fmt.Fprintln(&summary, r.line())
	}
	fmt.Fprintf(p.Out, "\n%s", &summary)
}

// test runs everything on one kernel.
func (b *bench) test(r *report) {
	image := r.kernel.fetch(b.P, b.cache, b.update)
	r.version = image.version
	res := b.boot(r.kernel, image, &machine{}, b.payload)
	if b.only == "" {
		r.judge(b.P, res)
		return
	}
	r.judgeSteps(res)
	r.judgeTests(b.P, res.files[outputName("bpf tests", "stdout")])
}

// boot runs a guest, with files in addition to /init, and keeps its kernel's types.
func (b *bench) boot(k kernel, i image, m *machine, more func(k kernel, i image, scratch string) []file) *results {
	scratch := filepath.Join(b.scratch, k.String())
	must.OK(b, os.MkdirAll(scratch, 0o755))
	b.Logf("%s: building", k)
	init := filepath.Join(scratch, "init")
	files := more(k, i, scratch)
	b.goRun(k, filepath.Join(b.root, "test"), "build", "-o", init, "./bench/kernels")
	b.Logf("%s: booting Debian's %s", k, i.version)
	res := b.runGuest(k, i, m, append(files, file{name: initPath, from: init}), scratch)
	types := res.files[kernelTypes]
	if len(types) == 0 {
		b.Fatalf("guest brought no %s", kernelTypes)
	}
	b.writeFile(i.types(), types)
	return res
}

// writeFile leaves a whole file or none.
func (b *bench) writeFile(name string, data []byte) {
	must.OK(b, os.WriteFile(name+".partial", data, 0o644))
	must.OK(b, os.Rename(name+".partial", name))
}

// payload builds what the steps need.
func (b *bench) payload(k kernel, i image, scratch string) []file {
	nodeprobe, test := filepath.Join(scratch, "nodeprobe"), filepath.Join(scratch, "bpf.test")
	b.goRun(k, b.root, "build", "-o", nodeprobe, "./cmd/nodeprobe")
	b.goRun(k, b.root, "test", "-c", "-o", test, "./bpf")
	files := []file{
		{name: "/bin/bpf.test", from: test},
		{name: truePath, link: initPath}, // the tests start it to count forks
		{name: modprobePath, link: initPath},
	}
	if b.only == "" {
		files = append(files, file{name: "/bin/nodeprobe", from: nodeprobe}, file{name: trialPath, link: initPath})
	}
	files = append(append(files, treeOf(b.P, i.tools(), "/")...), treeOf(b.P, filepath.Join(b.root, "bpf"), "/src/bpf")...)
	// Tests read the sources beside them, and objects of those in C: a guest has no
	// compiler. Where this machine has none either, they are skipped.
	for _, source := range must.Get(filepath.Glob(filepath.Join(b.root, "bpf/testdata/*.bpf.c")))(b) {
		name := strings.TrimSuffix(filepath.Base(source), ".bpf.c") + ".o"
		args := []string{"-O2", "-g", "-mcpu=v3", "-target", "bpf", "-c", source, "-o", filepath.Join(scratch, name)}
		if exec.CommandContext(b.Context(), "clang", args...).Run() == nil {
			files = append(files, file{name: "/src/bpf/testdata/" + name, from: filepath.Join(scratch, name)})
		}
	}
	return files
}

// treeOf returns the files below a directory for a directory of the guest.
func treeOf(p *program.P, from, to string) (files []file) {
	must.OK(p, filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, file{name: filepath.Join(to, strings.TrimPrefix(path, from)), from: path})
		}
		return err
	}))
	return files
}

// goRun runs the go command for the guest's architecture, without what the user
// has set for other builds.
func (b *bench) goRun(k kernel, dir, verb string, args ...string) {
	env := []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + k.arch, "GOFLAGS=-buildvcs=false", "GOWORK=off", "go", verb, "-trimpath", "-ldflags=-s -w"}
	output(b.P, dir, "env", append(env, args...)...)
}

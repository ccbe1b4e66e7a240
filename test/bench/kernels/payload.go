package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// payload builds what the guest runs, from the tree as it is now.
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

// buildInit builds this program for the guest.
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

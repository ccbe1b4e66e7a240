// Package build turns Go modules into the programs that the tests run, and
// keeps what it built outside of the tree.
//
// Kubernetes and other large programs are pinned in nested modules, so that
// their dependencies stay out of the test module's. A program is built once for
// each combination of pins, Go version and build flags.
package build

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

const modulePath = "github.com/nodeprobe/nodeprobe/test"

// Target is a program to build.
type Target struct {
	// Name of the program: "etcd".
	Name string
	// Dir is the module's directory, relative to the test module's root.
	Dir string
	// Package to build.
	Package string
	// Module is the module that holds Package and whose version is the program's.
	Module string
	// VersionVar is a string variable to set to the version at link time.
	VersionVar string
}

// Cached returns the file of the program, building it first if the cache lacks
// it. What it does goes to log, which may be nil. Several processes may ask for
// the same program at the same time: one builds, the others wait.
func Cached(ctx context.Context, t Target, log io.Writer) (string, error) {
	dir, err := t.moduleDir()
	if err != nil {
		return "", err
	}
	version, err := moduleVersion(filepath.Join(dir, "go.mod"), t.Module)
	if err != nil {
		return "", err
	}
	key, err := t.key(ctx, dir, version)
	if err != nil {
		return "", err
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	file := filepath.Join(cache, key, t.Name)
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return "", fmt.Errorf("make build cache: %w", err)
	}

	what := t.Name + " " + version
	unlock, err := Lock(ctx, filepath.Join(cache, key, "lock"), "waiting for another process that builds "+what, log)
	if err != nil {
		return "", fmt.Errorf("lock build of %s: %w", what, err)
	}
	defer unlock()
	if _, err := os.Stat(file); err == nil {
		return file, nil // Built by whoever held the lock.
	}
	// The rename is the commit point: a file under its final name is complete.
	partial := file + ".partial"
	if err := t.goBuild(ctx, dir, version, partial, log); err != nil {
		return "", err
	}
	if err := os.Rename(partial, file); err != nil {
		return "", fmt.Errorf("keep %s: %w", what, err)
	}
	return file, nil
}

// Product builds nodeprobe as it now is in the tree into dir, as users do, and
// returns the file.
func Product(ctx context.Context, dir string, log io.Writer) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	defer progress(log, "building nodeprobe")()
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", "-C", filepath.Dir(root), "build", "PREFIX="+dir)
	return filepath.Join(dir, "nodeprobe"), runBuild(ctx, cmd, "nodeprobe")
}

// key names the cache entry: readable for people, and different whenever the
// result of the build might be.
func (t Target) key(ctx context.Context, dir, version string) (string, error) {
	sum := sha256.New()
	// Asked in the module's directory, because its go.mod may select a toolchain.
	env := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT")
	env.Dir, env.Env, env.Stdout = dir, goEnviron(), sum
	if err := env.Run(); err != nil {
		return "", fmt.Errorf("run go env: %w", err)
	}
	fmt.Fprintln(sum, goEnv, t.buildArgs(version, ""))
	// The pins of everything else that goes into the program.
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", fmt.Errorf("read pins of %s: %w", t.Name, err)
		}
		sum.Write(data)
	}
	return t.Name + "-" + version + "-" + hex.EncodeToString(sum.Sum(nil)[:6]), nil
}

// goEnv is set for every build. GOFLAGS and GOWORK are set, not emptied: for
// the go command an empty variable is one that is not there, and what the user
// has set with "go env -w" would come in.
var goEnv = []string{"CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off"}

func goEnviron() []string { return append(os.Environ(), goEnv...) }

func (t Target) buildArgs(version, file string) []string {
	ldflags := "-s -w"
	if t.VersionVar != "" {
		ldflags += " -X " + t.VersionVar + "=" + version
	}
	return []string{"build", "-trimpath", "-ldflags", ldflags, "-o", file, t.Package}
}

func (t Target) goBuild(ctx context.Context, dir, version, file string, log io.Writer) error {
	what := t.Name + " " + version
	defer progress(log, "building "+what)()
	cmd := exec.CommandContext(ctx, "go", t.buildArgs(version, file)...)
	cmd.Dir = dir
	return runBuild(ctx, cmd, what)
}

func runBuild(ctx context.Context, cmd *exec.Cmd, what string) error {
	var output bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = goEnviron(), &output, &output
	// The go command ends its compilers when interrupted, not when killed.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", what, cmp.Or(context.Cause(ctx), err), output.Bytes())
	}
	return nil
}

// moduleDir finds the target's module from the working directory, which is
// somewhere in the checkout for "go test" and "go run" alike. Nothing that the
// compiler recorded is used, so that -trimpath does no harm.
func (t Target) moduleDir() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, filepath.FromSlash(t.Dir)), nil
}

// Root returns the directory of the test module: the nearest one that is above
// the working directory, or "test" in one that is.
func Root() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find test module: %w", err)
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		for _, root := range []string{dir, filepath.Join(dir, "test")} {
			data, err := os.ReadFile(filepath.Join(root, "go.mod"))
			if err == nil && bytes.HasPrefix(data, []byte("module "+modulePath+"\n")) {
				return root, nil
			}
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find test module: %s is not inside the checkout that holds %s", wd, modulePath)
		}
	}
}

// moduleVersion returns the version of module that a go.mod file requires.
func moduleVersion(goMod, module string) (string, error) {
	data, err := os.ReadFile(goMod)
	if err != nil {
		return "", fmt.Errorf("read version of %s: %w", module, err)
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(f) >= 2 && f[0] == module && strings.HasPrefix(f[1], "v") {
			return f[1], nil
		}
	}
	return "", fmt.Errorf("read version of %s: %s does not require it", module, goMod)
}

// cacheDir is where programs are kept: $NODEPROBE_CACHE, or else a directory in
// the user's cache.
func cacheDir() (string, error) {
	if dir := os.Getenv("NODEPROBE_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find build cache (set NODEPROBE_CACHE): %w", err)
	}
	return filepath.Join(dir, "nodeprobe", "bin"), nil
}

// Lock takes an exclusive lock on the file and returns what gives it back. The
// kernel gives it back too when the process ends, so none is ever stale. What it
// waits for goes to log, which may be nil.
func Lock(ctx context.Context, file, waiting string, log io.Writer) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return func() { f.Close() }, nil
	}
	defer progress(log, waiting)()
	for {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case err == nil:
			return func() { f.Close() }, nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			f.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// progress writes a line about a long step now, every ten seconds, and when the
// returned function is called.
func progress(log io.Writer, what string) (done func()) {
	if log == nil {
		return func() {}
	}
	start := time.Now()
	fmt.Fprintf(log, "%s\n", what)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(10 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Fprintf(log, "%s: %s…\n", what, time.Since(start).Round(time.Second))
			case <-stop:
				fmt.Fprintf(log, "%s: ended after %s\n", what, time.Since(start).Round(100*time.Millisecond))
				return
			}
		}
	}()
	return func() { close(stop); <-stopped }
}

// product is nodeprobe as the tests of one binary share it.
var product struct {
	once      sync.Once
	dir, file string
	err       error
}

// ProductForTest returns the nodeprobe under test: the file that
// NODEPROBE_BINARY names, or else built from the tree for the first test that
// asks. TestMain must call Main.
func ProductForTest(t testing.TB) string {
	t.Helper()
	product.once.Do(func() {
		if product.file = os.Getenv("NODEPROBE_BINARY"); product.file != "" {
			return
		}
		product.dir, product.err = os.MkdirTemp("", "nodeprobe-product-") //nolint:usetesting // outlives the first test
		if product.err == nil {
			product.file, product.err = Product(t.Context(), product.dir, os.Stderr)
		}
	})
	if product.err != nil {
		t.Fatal(product.err)
	}
	return product.file
}

// RootForTest returns the root of the product's module.
func RootForTest(t testing.TB) string {
	t.Helper()
	root := must.Get(Root())(t)
	return filepath.Dir(root)
}

// Main runs the tests, and then removes what ProductForTest has built.
func Main(m *testing.M) int {
	code := m.Run()
	if err := os.RemoveAll(product.dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

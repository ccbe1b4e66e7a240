// Package build turns Go modules into the programs that the tests run, and
// keeps what it built outside of the tree.
//
// Kubernetes and other large programs are pinned in nested modules, so that
// their dependencies stay out of the test module's. A program is built once for
// each combination of pins, Go version and build flags.
package build

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
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
// it. Several processes may ask for the same program at the same time: one builds,
// the others wait.
func Cached(t testing.TB, target Target) string {
	t.Helper()
	dir := filepath.Join(RootForTest(t), "test", filepath.FromSlash(target.Dir))
	version := must.Get(moduleVersion(filepath.Join(dir, "go.mod"), target.Module))(t)
	cache := filepath.Join(must.Get(cacheDir())(t), must.Get(target.key(t.Context(), dir, version))(t))
	file := filepath.Join(cache, target.Name)
	if _, err := os.Stat(file); err == nil {
		return file
	}
	must.OK(t, os.MkdirAll(cache, 0o755))
	defer Lock(t, filepath.Join(cache, "lock"))()
	if _, err := os.Stat(file); err == nil {
		return file // Built by whoever held the lock.
	}
	// The rename is the commit point: a file under its final name is complete.
	partial := file + ".partial"
	cmd := exec.CommandContext(t.Context(), "go", target.buildArgs(version, partial)...)
	cmd.Dir = dir
	runBuild(t, cmd, target.Name+" "+version)
	must.OK(t, os.Rename(partial, file))
	return file
}

// Product builds nodeprobe as it now is in the tree into dir, as users do, and
// returns the file.
func Product(t testing.TB, dir string) string {
	t.Helper()
	runBuild(t, exec.CommandContext(t.Context(), "make", "--no-print-directory", "-C", RootForTest(t), "build", "PREFIX="+dir), "nodeprobe")
	return filepath.Join(dir, "nodeprobe")
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

// runBuild names what it builds on stderr at once: it may take minutes.
func runBuild(t testing.TB, cmd *exec.Cmd, what string) {
	t.Helper()
	fmt.Fprintln(os.Stderr, "building", what)
	var output bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = goEnviron(), &output, &output
	// The go command ends its compilers when interrupted, not when killed.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		t.Fatalf("build %s: %v\n%s", what, err, output.Bytes())
	}
}

// RootForTest returns the root of the product's module: the nearest directory, from
// the working directory up, that has this module as "test". Nothing that the compiler
// recorded is used, so that -trimpath does no harm.
func RootForTest(t testing.TB) string {
	t.Helper()
	for dir := must.Get(os.Getwd())(t); ; dir = filepath.Dir(dir) {
		data, err := os.ReadFile(filepath.Join(dir, "test", "go.mod"))
		if err == nil && bytes.HasPrefix(data, []byte("module "+modulePath+"\n")) {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatalf("the working directory is not inside the checkout that holds %s", modulePath)
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

// Lock takes an exclusive lock on the file and returns what releases it. The kernel
// releases it too when the process ends, so none is ever stale.
func Lock(t testing.TB, file string) (unlock func()) {
	t.Helper()
	f := must.Get(os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644))(t)
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }
		}
		if t.Context().Err() != nil || !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			t.Fatalf("lock %s: %v", file, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// product is nodeprobe as the tests of one binary share it.
var product struct {
	once      sync.Once
	dir, file string
}

// ProductForTest returns the nodeprobe under test: the file that
// NODEPROBE_BINARY names, or else built from the tree for the first test that
// asks. TestMain must call Main.
func ProductForTest(t testing.TB) string {
	t.Helper()
	product.once.Do(func() {
		if product.file = os.Getenv("NODEPROBE_BINARY"); product.file == "" {
			product.dir = must.Get(os.MkdirTemp("", "nodeprobe-product-"))(t) //nolint:usetesting // outlives the first test
			product.file = Product(t, product.dir)
		}
	})
	if product.file == "" {
		t.Fatal("nodeprobe could not be built for an earlier test")
	}
	return product.file
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

package build

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// inFakeModule makes a small test module with a program in a nested module, and
// an empty cache.
func inFakeModule(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	t.Setenv("NODEPROBE_CACHE", t.TempDir())
	for name, content := range map[string]string{
		"go.mod":              "module " + modulePath + "\n",
		"deep/er/x":           "",
		"modules/prog/go.mod": "module example.test/prog\n\ngo 1.26.0\n\nrequire example.test/pinned v1.2.3 // indirect\n",
		"modules/prog/go.sum": "",
		"modules/prog/main.go": "package main\n\nvar version string\n\n" +
			"func main() { println(version) }\n",
	} {
		file := filepath.Join(root, name)
		must.OK(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must.OK(t, os.WriteFile(file, []byte(content), 0o600))
	}
	t.Chdir(filepath.Join(root, "deep/er"))
	return root
}

var prog = Target{Name: "prog", Dir: "modules/prog", Package: ".", Module: "example.test/pinned", VersionVar: "main.version"}

func TestCached(t *testing.T) {
	root := inFakeModule(t)
	// Neither may get through: what the user sets is for the user's builds.
	t.Setenv("GOFLAGS", "-mod=vendor -race")
	t.Setenv("GOWORK", "/nonexistent/go.work")

	// Concurrently, as two test binaries would: they share one result.
	var wait sync.WaitGroup
	var logs [2]bytes.Buffer
	var files [2]string
	for i := range files {
		wait.Go(func() {
			var err error
			if files[i], err = Cached(t.Context(), prog, &logs[i]); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if t.Failed() {
		t.FailNow()
	}
	if files[0] != files[1] {
		t.Errorf("two files: %q", files)
	}
	if built := strings.Count(logs[0].String()+logs[1].String(), "\nbuilding prog v1.2.3: ended"); built != 1 {
		t.Errorf("built %d times:\n%s%s", built, &logs[0], &logs[1])
	}
	output, err := exec.Command(files[0]).CombinedOutput()
	if err != nil || string(output) != "v1.2.3\n" {
		t.Errorf("program: %q, %v", output, err)
	}

	// Other pins are another program.
	mod := filepath.Join(root, "modules/prog/go.mod")
	data := must.Get(os.ReadFile(mod))(t)
	must.OK(t, os.WriteFile(mod, bytes.ReplaceAll(data, []byte("v1.2.3"), []byte("v1.2.4")), 0o600))
	file, err := Cached(t.Context(), prog, nil)
	if err != nil || file == files[0] {
		t.Errorf("after a change of the pins: %s, %v", file, err)
	}
}

func TestBuildFailure(t *testing.T) {
	root := inFakeModule(t)
	must.OK(t, os.WriteFile(filepath.Join(root, "modules/prog/main.go"), []byte("package main\n\nfunc main() { undefined() }\n"), 0o600))
	// Twice: a failure must not count as a result.
	for range 2 {
		if _, err := Cached(t.Context(), prog, nil); err == nil || !strings.Contains(err.Error(), "undefined: undefined") {
			t.Errorf("got %v, want the compiler's message", err)
		}
	}
}

func TestLockWaits(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	unlock := must.Get(Lock(t.Context(), file, "x", nil))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Lock(ctx, file, "x", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second lock: %v", err)
	}
	unlock()
	unlock = must.Get(Lock(t.Context(), file, "x", nil))(t)
	unlock()
}

func TestRootOutside(t *testing.T) {
	t.Chdir("/")
	if root, err := Root(); err == nil {
		t.Errorf("found %s", root)
	}
}

func TestModuleVersion(t *testing.T) {
	root := must.Get(Root())(t)
	for dir, module := range map[string]string{
		"harness/controlplane/modules/etcd":       "go.etcd.io/etcd/server/v3",
		"harness/controlplane/modules/kubernetes": "k8s.io/kubernetes",
		"bench/peers/nodeexporter":                "github.com/prometheus/node_exporter",
	} {
		version, err := moduleVersion(filepath.Join(root, dir, "go.mod"), module)
		if err != nil || !strings.HasPrefix(version, "v") {
			t.Errorf("%s: %q, %v", module, version, err)
		}
		if _, err := moduleVersion(filepath.Join(root, dir, "go.mod"), "k8s.io/none"); err == nil {
			t.Errorf("%s: version of a module that it does not require", dir)
		}
	}
}

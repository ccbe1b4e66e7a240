package build

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// inFakeModule makes a small test module with a program in a nested module, and
// an empty cache.
func inFakeModule(t *testing.T) (root string) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "test")
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
	var files [2]string
	for i := range files {
		wait.Go(func() { files[i] = Cached(t, prog) })
	}
	wait.Wait()
	if files[0] != files[1] {
		t.Errorf("two files: %q", files)
	}
	output, err := exec.Command(files[0]).CombinedOutput()
	if err != nil || string(output) != "v1.2.3\n" {
		t.Errorf("program: %q, %v", output, err)
	}

	// Other pins are another program.
	mod := filepath.Join(root, "modules/prog/go.mod")
	data := must.Get(os.ReadFile(mod))(t)
	must.OK(t, os.WriteFile(mod, bytes.ReplaceAll(data, []byte("v1.2.3"), []byte("v1.2.4")), 0o600))
	if file := Cached(t, prog); file == files[0] {
		t.Errorf("after a change of the pins: %s", file)
	}
}

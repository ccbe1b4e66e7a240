package controlplane

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

// shared is the test binary's one control plane, for tests that do not disturb
// each other. It exists only between the beginning and the end of Main.
var shared struct {
	mu      sync.Mutex
	enabled bool
	tried   bool
	opts    Options
	cp      *ControlPlane
}

// Main runs the tests of a package that share a control plane, and stops it
// after the last. Call it from TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }
//
// If a test fails, the directory of the control plane is kept and named.
func Main(m *testing.M) int { return MainWith(m, Options{}) }

// MainWith is Main for a control plane with options.
func MainWith(m *testing.M, opts Options) int {
	// The tests wait most of the time, so there is room for more at once than
	// the machine has processors, which is what go test allows unasked.
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set("16") // It is a number.
	}
	shared.enabled, shared.opts = true, opts
	code := build.Main(m)
	cp := shared.cp
	if cp == nil {
		return code
	}
	if code != 0 {
		cp.stopProcesses()
		fmt.Fprintf(os.Stderr, "control plane's files kept in %s\n", cp.dir)
		return code
	}
	if err := cp.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// StartForTest returns the control plane that the tests of this binary share,
// starting it for the first that asks. It stays in use, so a test must give its
// objects an ObjectName and must not stop anything; see StartExclusive. When the
// test fails, the API server's last lines are logged.
func StartForTest(t testing.TB) *ControlPlane {
	t.Helper()
	skipIfShort(t)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.enabled {
		t.Fatal("controlplane.StartForTest needs controlplane.Main in TestMain")
	}
	if !shared.tried {
		shared.tried = true
		shared.cp = start(t, shared.opts)
	}
	if shared.cp == nil { // nor will it start for this test
		t.Fatal("the shared control plane did not start")
	}
	t.Cleanup(func() { logOnFailure(t, shared.cp) })
	return shared.cp
}

// ObjectName returns a name for an object of the test, such as a Node: no other
// test gets it, nor the same test when it is run again (-count).
func ObjectName(t testing.TB) string {
	notDNS := regexp.MustCompile("[^a-z0-9]+")
	name := notDNS.ReplaceAllString(strings.ToLower(t.Name()), "-")
	return fmt.Sprintf("%s-%d", strings.Trim(name[:min(len(name), 50)], "-"), objects.Add(1))
}

// objects counts the names that ObjectName has given.
var objects atomic.Int64

// StartExclusive starts a control plane for one test, which may stop and start
// parts of it, and stops it when the test ends.
func StartExclusive(t testing.TB, opts Options) *ControlPlane {
	t.Helper()
	skipIfShort(t)
	cp := start(t, opts)
	t.Cleanup(func() {
		logOnFailure(t, cp)
		if t.Failed() {
			cp.stopProcesses()
			t.Logf("control plane's files kept in %s", cp.dir)
			return
		}
		must.Note(t, cp.Stop())
	})
	return cp
}

func skipIfShort(t testing.TB) {
	t.Helper()
	if testing.Testing() && testing.Short() {
		t.Skip("runs a control plane; -short is set")
	}
}

func logOnFailure(t testing.TB, cp *ControlPlane) {
	if t.Failed() {
		t.Logf("kube-apiserver's last lines:\n%s", process.LogTail(cp.logFile(apiServer), 15))
	}
}

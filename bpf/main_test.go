//go:build linux && (amd64 || arm64)

package bpf

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// helperEnv names what a copy of the test binary is to do instead of testing.
const helperEnv = "NODEPROBE_BPF_HELPER"

func TestMain(m *testing.M) {
	name := os.Getenv(helperEnv)
	if name == "" {
		os.Exit(m.Run())
	}
	helpers := map[string]func(args []string) error{
		"hooks":  helperHooks,
		"oom":    helperOOM,
		"thrash": helperThrash,
		"watch":  helperWatch,
	}
	if err := helpers[name](os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

// helper returns a command that runs a helper. It goes by /proc/self/exe, which
// also a user may execute that cannot reach the test binary by its path.
func helper(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	// The race detector would have each of them wait for a second at its end.
	cmd.Env = []string{helperEnv + "=" + name, "GORACE=atexit_sleep_ms=0"}
	cmd.Stderr = os.Stderr
	return cmd
}

// lacking skips the test for want of something, or fails it if that is not
// allowed.
func lacking(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("NODEPROBE_REQUIRE") == "1" {
		t.Fatalf("NODEPROBE_REQUIRE=1, but "+format, args...)
	}
	t.Skipf(format, args...)
}

// open returns a Sensor that has the signals, and closes it with the test.
func open(t testing.TB, signals ...Signal) *Sensor {
	t.Helper()
	s := Open(Options{})
	t.Cleanup(func() { closeSensor(t, s) })
	for _, h := range s.Hooks() {
		for _, signal := range signals {
			if h.Signal == signal && !h.Attached {
				lacking(t, "no %s: %v (%s)", h.Name, h.Err, h.Remedy)
			}
		}
	}
	return s
}

func closeSensor(t testing.TB, s *Sensor) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// needRoot skips the test unless it may mount, make cgroups and load programs.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		lacking(t, "not root")
	}
	if missing := readEnvironment().missingCaps(); missing != nil {
		lacking(t, "no %s", strings.Join(missing, ", "))
	}
}

// eventually waits for ok to come true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > 20*time.Second {
			t.Fatalf("never saw %s", what)
		}
	}
}

// readAll returns a file as a string.
func readAll(t testing.TB, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

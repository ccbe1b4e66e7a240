// Package need states what a test needs of the machine it runs on. Where that
// is missing the test is skipped with the reason, or, with NODEPROBE_REQUIRE=1
// in the environment, fails: a continuous-integration run must not become green
// because everything was skipped.
package need

import (
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// Skip ends the test because of why, as a skip or as a failure.
func Skip(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("NODEPROBE_REQUIRE") == "1" {
		t.Fatalf("NODEPROBE_REQUIRE=1: %s", why)
	}
	t.Skip(why)
}

// Root skips the test unless it runs as root.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Skip(t, "needs root")
	}
}

// Command skips the test unless the named program is in PATH. The Debian
// package that holds it goes into the message.
func Command(t testing.TB, name, debianPackage string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		Skip(t, "needs "+name+" (Debian package "+debianPackage+")")
	}
}

// Address returns an address of this machine that a node may have, and skips the
// test if there is none but loopback's.
func Address(t testing.TB) string {
	t.Helper()
	for _, a := range must.Get(net.InterfaceAddrs())(t) {
		if network, ok := a.(*net.IPNet); ok && network.IP.IsGlobalUnicast() {
			return network.IP.String()
		}
	}
	Skip(t, "needs an address other than loopback")
	return ""
}

package e2e

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(controlplane.Main(m))
}

// node is a Node, with what these tests do to it.
type node struct{ *stage.Node }

func newNode(t *testing.T, cp *controlplane.ControlPlane, config agent.Config) *node {
	t.Helper()
	return &node{stage.New(t, cp, config)}
}

// changed returns what the agent has logged of changes of the kubelet's conditions.
// Those of our own follow rules of their own.
func changed(t *testing.T, a *agent.Agent) []agent.Record {
	t.Helper()
	return slices.DeleteFunc(stage.Logged(t, a, "condition changed"), func(r agent.Record) bool {
		return strings.Contains(r.Line, `"condition":"nodeprobe.dev/`)
	})
}

// waitChanged waits until there are more than n, and returns the one after them.
func waitChanged(t *testing.T, a *agent.Agent, n int) agent.Record {
	t.Helper()
	stage.Until(t, "a condition has changed", func() bool { return len(changed(t, a)) > n })
	return changed(t, a)[n]
}

package service

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/wait"
)

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(build.Main(m))
}

// patience is for a machine that does ten other things at the same time.
const patience = 3 * time.Minute

// observe is the configuration of an agent that nothing on this machine matters
// to, and writes nothing.
func observe() agent.Config { return agent.Own().With(agent.Config{"mode": "observe"}) }

// start runs nodeprobe as a service of manager until the test ends.
func start(t *testing.T, config agent.Config, env ...string) (*agent.Agent, *Manager) {
	t.Helper()
	dir := t.TempDir()
	manager := must.Get(Listen(dir))(t)
	t.Cleanup(func() { manager.Close() })
	a := agent.StartForTest(t, agent.Spec{
		Binary: build.ProductForTest(t), Dir: dir, NodeName: "service", Kubeconfig: kubeconfig(t, dir), Config: config,
		Env: append(env, "NOTIFY_SOCKET="+manager.Address),
	})
	return a, manager
}

// kubeconfig is one of an API server that does not answer: port 1 is privileged,
// and nobody listens there.
func kubeconfig(t *testing.T, dir string) string {
	t.Helper()
	file := filepath.Join(dir, "kubeconfig")
	const content = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`
	must.OK(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

// patient is a context that ends when the test has waited long enough.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	t.Cleanup(stop)
	return ctx
}

// eventually waits until check returns nil.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	wait.Until(t, patience, what, check)
}

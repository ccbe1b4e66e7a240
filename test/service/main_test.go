package service

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/agent"
	"github.com/nodeprobe/nodeprobe/test/build"
	"github.com/nodeprobe/nodeprobe/test/pressure"
	"github.com/nodeprobe/nodeprobe/test/process"
)

func TestMain(m *testing.M) {
	pressure.Main()
	code := m.Run()
	if err := os.RemoveAll(product.dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// product is the binary under test: the file that NODEPROBE_BINARY names, or
// else built from the tree for the first test that asks.
var product struct {
	once      sync.Once
	dir, file string
	err       error
}

func binary(t *testing.T) string {
	t.Helper()
	product.once.Do(func() {
		if product.file = os.Getenv("NODEPROBE_BINARY"); product.file != "" {
			return
		}
		product.dir, product.err = os.MkdirTemp("", "nodeprobe-service-") //nolint:usetesting // outlives the first test
		if product.err == nil {
			product.file, product.err = build.Product(t.Context(), product.dir, os.Stderr)
		}
	})
	if product.err != nil {
		t.Fatal(product.err)
	}
	return product.file
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
	manager, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { manager.Close() })
	a, err := agent.Start(t.Context(), agent.Spec{
		Binary: binary(t), Dir: dir, NodeName: "service", Kubeconfig: kubeconfig(t, dir), Config: config,
		Env: append(env, "NOTIFY_SOCKET="+manager.Address),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.Stop()
		if t.Failed() {
			t.Logf("nodeprobe's last lines:\n%s", process.LogTail(a.LogFile, 40))
		}
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
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// patient is a context that ends when the test has waited long enough.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	t.Cleanup(stop)
	return ctx
}

// eventually calls check until it returns nil, and ends the test if it never
// does.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %s until %s: %v", patience, what, err)
		}
	}
}

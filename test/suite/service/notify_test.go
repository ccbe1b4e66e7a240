package service

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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

func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	t.Cleanup(stop)
	return ctx
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	wait.Until(t, patience, what, check)
}

// What a service manager is told of a nodeprobe whose API server is away: all is
// well, as nobody gains from killing it.
func TestManagerIsTold(t *testing.T) {
	t.Parallel()
	config := observe()
	config["mode"] = "own"
	a, manager := start(t, config, "WATCHDOG_USEC=1000000")
	ctx := patient(t)
	first := must.Get(manager.Next(ctx))(t)
	want := "READY=1\nSTATUS=mode own, node service: MemoryPressure=False DiskPressure=False PIDPressure=False; status: "
	if !strings.HasPrefix(first.Text, want) {
		t.Errorf("told %q first, want %q", first.Text, want)
	}
	alive := 0
	refused := false
	for alive < 5 || !refused { // or until ctx ends
		message, err := manager.Next(ctx)
		if err != nil {
			t.Fatalf("%d signs of life; that the connection is refused was told: %v: %v", alive, refused, err)
		}
		if message.Fields["WATCHDOG"] == "1" {
			alive++
		}
		refused = refused || strings.Contains(message.Fields["STATUS"], "connection refused")
	}
	environ, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(a.PID()), "environ"))
	if err != nil || !strings.Contains(string(environ), "NOTIFY_SOCKET="+manager.Address) {
		t.Errorf("it was not started as a service: %v", err)
	}
	must.OK(t, syscall.Kill(a.PID(), syscall.SIGTERM))
	if _, last, err := manager.Until(ctx, "STOPPING"); err != nil || last.Fields["STATUS"] != "stopping" {
		t.Errorf("told %q last: %v", last.Text, err)
	}
	select {
	case <-a.Exited():
	case <-ctx.Done():
		t.Error("it goes on")
	}
}

// A manager that is not there any more stops nothing.
func TestManagerIsGone(t *testing.T) {
	t.Parallel()
	a, manager := start(t, observe(), "WATCHDOG_USEC=200000")
	ctx := patient(t)
	if _, _, err := manager.Until(ctx, "WATCHDOG"); err != nil {
		t.Fatal(err)
	}
	must.OK(t, manager.Close())
	const said = "service manager"
	count := func() (n int) {
		for _, r := range must.Get(a.Log())(t) {
			if strings.Contains(r.Msg, said) {
				n++
			}
		}
		return n
	}
	eventually(t, "it is noticed", func() error {
		if count() == 0 {
			return fmt.Errorf("no %q in the log", said)
		}
		return nil
	})
	before := must.Get(a.Metric(ctx, "nodeprobe_sampler_sample_duration_seconds_count"))(t)
	eventually(t, "samples go on", func() error {
		now, err := a.Metric(ctx, "nodeprobe_sampler_sample_duration_seconds_count")
		if err == nil && now < before+10 {
			err = fmt.Errorf("%v samples, %v before", now, before)
		}
		return err
	})
	if n := count(); n != 1 {
		t.Errorf("%d lines about it", n)
	}
}

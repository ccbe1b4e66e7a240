// Package service runs nodeprobe as a service manager would, and plays the manager:
// what it receives, reloads, and what the process may do.
package service

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(build.Main(m))
}

// service is a nodeprobe together with the manager that started it.
type service struct {
	*agent.Agent
	t      *testing.T
	conn   *net.UnixConn // what NOTIFY_SOCKET names
	config string        // the file
}

// message has the fields of one datagram, by the names of sd_notify(3).
type message map[string]string

// start runs nodeprobe as a service until the test ends. Its API server does not
// answer: port 1 is privileged, and nothing listens there.
func start(t *testing.T, config agent.Config, env ...string) *service {
	t.Helper()
	return startUnread(t, config, nil, env...)
}

// startUnread is start of a nodeprobe whose log nobody reads once unread is closed.
func startUnread(t *testing.T, config agent.Config, unread <-chan struct{}, env ...string) *service {
	t.Helper()
	dir := t.TempDir()
	socket, kubeconfig := filepath.Join(dir, "notify"), filepath.Join(dir, "kubeconfig")
	conn := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}))(t)
	t.Cleanup(func() { conn.Close() })
	const content = `{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}],
users: [{name: u, user: {token: t}}], contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}`
	must.OK(t, os.WriteFile(kubeconfig, []byte(content), 0o600))
	a := agent.StartForTest(t, agent.Spec{
		Binary: build.ProductForTest(t), Dir: dir, NodeName: "service", Kubeconfig: kubeconfig,
		Config: agent.Own().With(agent.Config{"mode": "observe"}).With(config), Env: append(env, "NOTIFY_SOCKET="+socket),
		Unread: unread,
	})
	return &service{Agent: a, t: t, conn: conn, config: filepath.Join(dir, "service.yaml")}
}

func (s *service) next() message {
	s.t.Helper()
	must.OK(s.t, s.conn.SetReadDeadline(time.Now().Add(stage.Patience)))
	buf := make([]byte, 8<<10)
	n := must.Get(s.conn.Read(buf))(s.t)
	m := message{}
	for line := range strings.SplitSeq(string(buf[:n]), "\n") {
		name, value, _ := strings.Cut(line, "=")
		m[name] = value
	}
	return m
}

// until returns the next message that has the field.
func (s *service) until(field string) message {
	s.t.Helper()
	for {
		m := s.next()
		if _, has := m[field]; has {
			return m
		}
	}
}

// reload replaces the configuration as an editor does, and returns when the manager
// has been notified of the end of the reload.
func (s *service) reload(config string) {
	s.t.Helper()
	must.OK(s.t, os.WriteFile(s.config+".new", []byte(config), 0o600))
	must.OK(s.t, os.Rename(s.config+".new", s.config))
	must.OK(s.t, syscall.Kill(s.PID(), syscall.SIGHUP))
	begin := s.until("RELOADING")
	var micros int64
	if _, err := fmt.Sscan(begin["MONOTONIC_USEC"], &micros); err != nil || micros <= 0 {
		s.t.Errorf("the reload begins with %q: %v", begin, err)
	}
	s.until("READY")
}

func encode(t *testing.T, config agent.Config) string {
	t.Helper()
	return string(must.Get(json.MarshalIndent(agent.Own().With(agent.Config{"mode": "observe"}).With(config), "", "  "))(t))
}

// wait waits until a series has a value.
func (s *service) wait(why, series string, want float64) {
	s.t.Helper()
	stage.Eventually(s.t, why, func() error { return stage.Metric(s.Agent, series, want) })
}

func (s *service) metric(series string) float64 {
	s.t.Helper()
	return must.Get(s.Metric(s.t.Context(), series))(s.t)
}

// programs returns the BPF programs that the process holds, by file descriptor, and
// skips the test if there are none.
func (s *service) programs() string {
	s.t.Helper()
	var ids []string
	for _, file := range must.Get(filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", s.PID())))(s.t) {
		text, _ := os.ReadFile(file) // fails if closed since
		for line := range bytes.Lines(text) {
			if id, found := bytes.CutPrefix(line, []byte("prog_id:")); found {
				ids = append(ids, filepath.Base(file)+"="+string(bytes.TrimSpace(id)))
			}
		}
	}
	if len(ids) == 0 {
		need.Skip(s.t, "no BPF program could be attached")
	}
	return strings.Join(ids, " ")
}

// While the API server is away, the watchdog is pinged all the same: a restart would
// not help.
func TestManagerIsNotified(t *testing.T) {
	t.Parallel()
	s := start(t, agent.Config{"mode": "own"}, "WATCHDOG_USEC=1000000")
	first, want := s.next(), "mode own, node service: MemoryPressure=False DiskPressure=False PIDPressure=False; status: "
	if first["READY"] != "1" || !strings.HasPrefix(first["STATUS"], want) {
		t.Errorf("the first message is %q, want READY and %q", first, want)
	}
	for pings, refused := 0, false; pings < 5 || !refused; {
		m := s.next()
		if m["WATCHDOG"] == "1" {
			pings++
		}
		refused = refused || strings.Contains(m["STATUS"], "connection refused")
	}
	must.OK(t, syscall.Kill(s.PID(), syscall.SIGTERM))
	if last := s.until("STOPPING"); last["STATUS"] != "stopping" {
		t.Errorf("the last message is %q", last)
	}
	select {
	case <-s.Exited():
	case <-time.After(stage.Patience):
		t.Error("it does not exit")
	}
}

// A standard error that takes nothing more delays the end by no more than the second that
// it gets for the last lines, and changes nothing about the exit code.
func TestEndsWithBlockedLog(t *testing.T) {
	t.Parallel()
	const logWait, slack = time.Second, 10 * time.Second // of a busy machine
	unread := make(chan struct{})
	s := startUnread(t, agent.Config{"logLevel": "debug"}, unread)
	s.until("READY")
	close(unread)
	stderr := must.Get(os.OpenFile(fmt.Sprintf("/proc/%d/fd/2", s.PID()), os.O_WRONLY|syscall.O_NONBLOCK, 0))(t)
	defer stderr.Close()
	blocked := func() error {
		_ = stderr.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		if _, err := stderr.Write([]byte{'\n'}); err == nil {
			return errors.New("it takes a line")
		}
		return nil
	}
	stage.Eventually(t, "standard error is full", blocked)
	s.reload(encode(t, agent.Config{"logLevel": "debug"})) // which is logged, and hangs there
	must.Note(t, blocked())

	begin := time.Now()
	must.OK(t, syscall.Kill(s.PID(), syscall.SIGTERM))
	s.until("STOPPING")
	select {
	case <-s.Exited():
	case <-time.After(stage.Patience):
		t.Fatal("it does not exit")
	}
	if took := time.Since(begin); took < logWait || took > logWait+slack {
		t.Errorf("it exits after %s", took)
	} else {
		t.Logf("it exits after %s", took)
	}
	if !s.Succeeded() {
		t.Error("it fails")
	}
}

// After a reload the new limits are in force; a file with a mistake changes nothing;
// the programs in the kernel stay the same.
func TestReload(t *testing.T) {
	t.Parallel()
	need.Root(t)
	const memory = `nodeprobe_node_condition{condition="MemoryPressure",status="true"}`
	hard := func(memory string) agent.Config {
		// The next sample by itself is in an hour.
		return agent.Config{
			"bpf": "auto", "sampleInterval": "1h", "evictionPressureTransitionPeriod": "0s",
			"evictionHard": agent.Hard(map[string]string{"memory.available": memory, "pid.available": "1"}),
		}
	}
	s := start(t, hard("1Mi"))
	s.until("READY")
	before := s.programs()
	s.wait("nothing is short of memory at first", memory, 0)

	s.reload(encode(t, hard("99%")))
	s.wait("the new threshold is in force", memory, 1)
	must.Note(t, stage.Metric(s.Agent, "nodeprobe_config_last_reload_successful", 1))

	s.reload("apiVersion: nodeprobe.dev/v1alpha1\nkind: NodeProbeConfiguration\nevictionHard:\n  memory.available: lots\n")
	if m := s.until("STATUS"); !strings.Contains(m["STATUS"], "refused") {
		t.Errorf("the manager receives %q", m)
	}
	must.Note(t, stage.Metric(s.Agent, "nodeprobe_config_last_reload_successful", 0))
	s.wait("the old threshold stays in force", memory, 1)
	for _, path := range []string{"/livez", "/readyz"} {
		must.Note(t, stage.Code(s.Agent, path, 200))
	}
	records := stage.Logged(t, s.Agent, "")
	last := records[len(records)-1]
	if last.Level != "ERROR" || !strings.Contains(last.Err, "service.yaml:4: evictionHard[memory.available]: ") {
		t.Errorf("the last line is %s", last.Line)
	}

	s.reload(encode(t, hard("1Mi").With(agent.Config{"bpf": "off", "mode": "own"})))
	s.wait("what can change does", memory, 0)
	must.Note(t, stage.Metric(s.Agent, "nodeprobe_config_restart_needed", 1))
	must.Note(t, stage.Metric(s.Agent, "nodeprobe_config_last_reload_successful", 1))
	if after := s.programs(); after != before {
		t.Errorf("programs %s, were %s", after, before)
	}
}

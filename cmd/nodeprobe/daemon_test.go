package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// logBuffer is written and read at the same time.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// testDaemon builds a daemon that observes a tree and is not started.
func testDaemon(t *testing.T, tr *tree, fields string) (*daemon, *logBuffer) {
	t.Helper()
	cfg, p, err := loadConfig(writeConfig(t, fields), kubeletFiles{})
	if err != nil {
		t.Fatal(err)
	}
	log := &logBuffer{}
	d, err := newDaemon(&cfg, p, tr.paths(), slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.close)
	return d, log
}

// goroutines returns the stacks of those that are in code of ours.
func goroutines() []string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var ours []string
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		if strings.Contains(stack, "nodeprobe/nodeprobe/") && !strings.Contains(stack, "testing.tRunner") {
			ours = append(ours, stack)
		}
	}
	return ours
}

// The whole of it: a file changes, somebody wakes the sampler, and the
// condition's metric changes.
func TestDaemonFollowsTheNode(t *testing.T) {
	tr := newTree(t, nil)
	d, log := testDaemon(t, tr, "sampleInterval: 1h\nevictionPressureTransitionPeriod: 0s\n")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.run(ctx, nil) }()
	memory := func() float64 { return gauges(t, d.registry, "nodeprobe_condition_status")["MemoryPressure"] }
	eventually(t, "first verdict", func() bool { return memory() == 0 })

	tr.write("proc/meminfo", memoryInUse(8369140))
	d.sampler.Wake(probe.CauseEvent)
	eventually(t, "pressure", func() bool { return memory() == 1 })

	// What cannot be read ends nothing.
	tr.write("proc/meminfo", withoutUsage(memoryInUse(8369140)))
	d.sampler.Wake(probe.CauseEvent)
	eventually(t, "error", func() bool {
		return gauges(t, d.registry, "nodeprobe_sampler_read_errors_total")["memory_cgroup"] > 0
	})
	if got := memory(); got != 1 {
		t.Errorf("condition is %v without evidence", got)
	}

	tr.write("proc/meminfo", memoryInUse(2<<20))
	d.sampler.Wake(probe.CauseEvent)
	eventually(t, "relief", func() bool { return memory() == 0 })

	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for _, want := range []string{"status=True threshold=memory.available<100Mi", "status=False"} {
		if strings.Count(log.String(), `msg="condition changed" condition=MemoryPressure `+want) != 1 {
			t.Errorf("not one line %q in\n%s", want, log)
		}
	}
}

func TestDaemonChecksThresholds(t *testing.T) {
	d, log := testDaemon(t, newTree(t, nil), "evictionHard: {pid.available: 40k}\n")
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := d.run(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "pid.available: threshold 40k is above the capacity 32768") {
		t.Errorf("no warning in\n%s", log)
	}
}

// started is "nodeprobe run" in this process.
type started struct {
	stdout, stderr logBuffer
	code           chan int
}

func start(ctx context.Context, args ...string) *started {
	s := &started{code: make(chan int, 1)}
	go func() { s.code <- run(ctx, append([]string{"run"}, args...), &s.stdout, &s.stderr) }()
	return s
}

var listening = regexp.MustCompile(`msg="nodeprobe is running".* listen=(\S+)\n`)

func (s *started) address(t *testing.T) string {
	t.Helper()
	var address string
	eventually(t, "nodeprobe is running", func() bool {
		m := listening.FindStringSubmatch(s.stderr.String())
		if m == nil {
			return false
		}
		address = m[1]
		return true
	})
	return address
}

func (s *started) wait(t *testing.T) int {
	t.Helper()
	select {
	case code := <-s.code:
		return code
	case <-time.After(patience):
		t.Fatal("run does not return")
		return 0
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// The command from start to end: it serves what it says, and leaves nothing.
func TestRun(t *testing.T) {
	before := goroutines()
	ctx, stop := context.WithCancel(t.Context())
	tr := newTree(t, nil)
	s := start(ctx, append(tr.flags(), "--config", writeConfig(t, "sampleInterval: 100ms\n"), "--web.listen-address=127.0.0.1:0")...)
	address := s.address(t)

	eventually(t, "ready", func() bool { code, _ := get(t, "http://"+address+"/readyz"); return code == http.StatusOK })
	metrics := func() string { _, body := get(t, "http://"+address+"/metrics"); return body }
	if body := metrics(); !strings.Contains(body, `nodeprobe_signal_available_tasks{signal="pid.available"} 32568`) {
		t.Errorf("no tasks in\n%s", body)
	}
	tr.write("proc/loadavg", "0.20 0.18 0.12 1/32000 11206\n")
	eventually(t, "PID pressure", func() bool {
		return strings.Contains(metrics(), `nodeprobe_condition_status{condition="PIDPressure"} 1`)
	})

	// A port that is taken is said at once.
	second := start(t.Context(), append(tr.flags(), "--config", writeConfig(t, ""), "--web.listen-address="+address)...)
	if code := second.wait(t); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	if want := "nodeprobe: webListenAddress (--web.listen-address): listen tcp " + address + ": bind: address already in use\n"; second.stderr.String() != want {
		t.Errorf("got %s, want %s", &second.stderr, want)
	}

	stop()
	if code := s.wait(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, &s.stderr)
	}
	if log := s.stderr.String(); !strings.HasSuffix(log, "msg=\"nodeprobe has stopped\"\n") || strings.Contains(log, "level=ERROR") {
		t.Errorf("log:\n%s", log)
	}
	if s.stdout.String() != "" {
		t.Errorf("on standard output: %s", &s.stdout)
	}
	if conn, err := net.Dial("tcp", address); err == nil {
		conn.Close()
		t.Error("the port is still open")
	}
	http.DefaultClient.CloseIdleConnections()
	eventually(t, "no goroutine left", func() bool { return len(goroutines()) <= len(before) })
}

// A wrong path is not ready, and says why; a machine without PSI is ready.
func TestNotReadyForWantOfSignals(t *testing.T) {
	for name, test := range map[string]struct {
		changes map[string]string
		procfs  string
		want    []string // of the reasons; nil is ready
	}{
		"no PSI": {changes: map[string]string{"proc/pressure/cpu": "", "proc/pressure/memory": "", "proc/pressure/io": ""}},
		"no procfs": {procfs: "/nope", want: []string{
			"[-]conditions failed: ",
			"MemoryPressure could not be judged yet: memory.available: open /nope/meminfo: no such file or directory",
			"PIDPressure could not be judged yet: pid.available: open /nope/loadavg: no such file or directory",
			"example.com/Low could not be judged yet: memory.available: open /nope/meminfo: no such file or directory",
		}},
		"no memory cgroup": {changes: map[string]string{"sys/fs/cgroup/memory.stat": ""}, want: []string{
			"MemoryPressure could not be judged yet: memory.available: find memory controller below ",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			url := startOn(t, newTree(t, test.changes), test.procfs)
			if code, body := get(t, url+"/livez"); code != http.StatusOK {
				t.Errorf("/livez: %d: %s", code, body)
			}
			code, body := get(t, url+"/readyz")
			if ready := code == http.StatusOK; ready != (test.want == nil) {
				t.Errorf("/readyz: %d: %s", code, body)
			}
			for _, want := range test.want {
				if !strings.Contains(body, want) {
					t.Errorf("/readyz does not say %q:\n%s", want, body)
				}
			}
		})
	}
}

// startOn runs the command on a tree, with a condition of its own, until the test ends,
// and returns its URL.
func startOn(t *testing.T, tr *tree, procfs string) string {
	t.Helper()
	config := writeConfig(t, "sampleInterval: 100ms\nconditions: {example.com/Low: "+
		"{when: [memory.available < 1Mi, memory.some.avg10 > 99%], reason: Low, okReason: Enough}}\n")
	args := append(tr.flags(), "--config", config, "--web.listen-address=127.0.0.1:0")
	if procfs != "" {
		args = append(args, "--path.procfs="+procfs)
	}
	ctx, stop := context.WithCancel(t.Context())
	s := start(ctx, args...)
	t.Cleanup(func() { stop(); s.wait(t) })
	return "http://" + s.address(t)
}

// Readiness is whether a condition could be judged once; what it cannot be later is
// said elsewhere, and no reason to take the node for one that was set up wrong.
func TestReadyOnceJudged(t *testing.T) {
	tr := newTree(t, map[string]string{"proc/loadavg": ""})
	url := startOn(t, tr, "")
	code, body := get(t, url+"/readyz")
	if want := "[-]conditions failed: PIDPressure could not be judged yet: pid.available: open "; code != http.StatusServiceUnavailable || !strings.Contains(body, want) {
		t.Errorf("/readyz: %d: %s", code, body)
	}
	tr.write("proc/loadavg", treeFiles()["proc/loadavg"])
	eventually(t, "ready", func() bool { code, _ := get(t, url+"/readyz"); return code == http.StatusOK })
	errors := func() string {
		_, body := get(t, url+"/metrics")
		_, after, _ := strings.Cut(body, `nodeprobe_sampler_read_errors_total{source="loadavg"} `)
		count, _, _ := strings.Cut(after, "\n")
		return count
	}
	before := errors()
	tr.write("proc/loadavg", "garbage\n")
	eventually(t, "an error", func() bool { return errors() != before })
	if code, body := get(t, url+"/readyz"); code != http.StatusOK {
		t.Errorf("/readyz after it was judged: %d: %s", code, body)
	}
}

// A signal is how it is stopped, and no failure.
func TestRunUntilSignal(t *testing.T) {
	tr := newTree(t, nil)
	s := start(t.Context(), append(tr.flags(), "--config", writeConfig(t, ""), "--web.listen-address=")...)
	if got := s.address(t); got != `""` {
		t.Errorf("serves on %s", got)
	}
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := s.wait(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, &s.stderr)
	}
}

// With a live table, standard error has nothing and the log is in the table.
func TestRunWithTable(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	tr := newTree(t, nil)
	s := start(ctx, append(tr.flags(), "--config", writeConfig(t, ""), "--web.listen-address=", "--table=on", "--log.format=json")...)
	eventually(t, "a table", func() bool { return strings.Contains(s.stdout.String(), "memory.available") })
	stop()
	if code := s.wait(t); code != 0 || s.stderr.String() != "" {
		t.Errorf("exit code %d: %s", code, &s.stderr)
	}
	last := s.stdout.String()[strings.LastIndex(s.stdout.String(), cursorHome):]
	for _, want := range []string{"nodeprobe " + release + ", mode observe, node 192.0.2.7", "pid.available", `"msg":"nodeprobe has stopped"`} {
		if !strings.Contains(last, want) {
			t.Errorf("no %q in what stays on the screen:\n%q", want, last)
		}
	}
}

// Own mode needs an API server; that there is none is said in one line.
func TestRunWithoutCluster(t *testing.T) {
	tr := newTree(t, nil)
	s := start(t.Context(), append(tr.flags(), "--config", writeConfig(t, ""), "--web.listen-address=", "--mode=own")...)
	code := s.wait(t)
	_, last, _ := strings.Cut(s.stderr.String(), "nodeprobe: ")
	want := "no kubeconfig is given, and there is no service account to use instead: unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined\n"
	if code != exitFailed || last != want {
		t.Errorf("exit code %d, want %d and %s:\n%s", code, exitFailed, want, &s.stderr)
	}
}

package main

import (
	"context"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

// The command from start to end: it serves what it says, and leaves nothing.
func TestRun(t *testing.T) {
	before := testtree.Goroutines()
	ctx, stop := context.WithCancel(t.Context())
	tr := testtree.New(t, nil)
	s := start(ctx, append(flags(tr), "--config", writeConfig(t, "sampleInterval: 100ms\n"), "--web.listen-address=127.0.0.1:0")...)
	address := s.address(t)

	testtree.Eventually(t, "ready", func() bool { code, _ := get(t, "http://"+address+"/readyz"); return code == http.StatusOK })
	metrics := func() string { _, body := get(t, "http://"+address+"/metrics"); return body }
	if body := metrics(); !strings.Contains(body, `nodeprobe_signal_available_tasks{signal="pid.available"} 32568`) {
		t.Errorf("no tasks in\n%s", body)
	}
	tr.Write("proc/loadavg", "0.20 0.18 0.12 1/32000 11206\n")
	testtree.Eventually(t, "PID pressure", func() bool {
		return strings.Contains(metrics(), `nodeprobe_condition_status{condition="PIDPressure"} 1`)
	})

	// A port that is taken is an error at once.
	second := start(t.Context(), append(flags(tr), "--config", writeConfig(t, ""), "--web.listen-address="+address)...)
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
	testtree.Eventually(t, "no goroutine left", func() bool { return len(testtree.Goroutines()) <= len(before) })
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
			url := startOn(t, testtree.New(t, test.changes), test.procfs)
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
func startOn(t *testing.T, tr *testtree.Tree, procfs string) string {
	t.Helper()
	config := writeConfig(t, "sampleInterval: 100ms\nconditions: {example.com/Low: "+
		"{when: [memory.available < 1Mi, memory.some.avg10 > 99%], reason: Low, okReason: Enough}}\n")
	args := append(flags(tr), "--config", config, "--web.listen-address=127.0.0.1:0")
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
	tr := testtree.New(t, map[string]string{"proc/loadavg": ""})
	url := startOn(t, tr, "")
	code, body := get(t, url+"/readyz")
	if want := "[-]conditions failed: PIDPressure could not be judged yet: pid.available: open "; code != http.StatusServiceUnavailable || !strings.Contains(body, want) {
		t.Errorf("/readyz: %d: %s", code, body)
	}
	tr.Write("proc/loadavg", testtree.Files()["proc/loadavg"])
	testtree.Eventually(t, "ready", func() bool { code, _ := get(t, url+"/readyz"); return code == http.StatusOK })
	errors := func() string {
		_, body := get(t, url+"/metrics")
		_, after, _ := strings.Cut(body, `nodeprobe_sampler_read_errors_total{source="loadavg"} `)
		count, _, _ := strings.Cut(after, "\n")
		return count
	}
	before := errors()
	tr.Write("proc/loadavg", "garbage\n")
	testtree.Eventually(t, "an error", func() bool { return errors() != before })
	if code, body := get(t, url+"/readyz"); code != http.StatusOK {
		t.Errorf("/readyz after it was judged: %d: %s", code, body)
	}
}

// A signal is how it is stopped, and no failure.
func TestRunUntilSignal(t *testing.T) {
	tr := testtree.New(t, nil)
	s := start(t.Context(), append(flags(tr), "--config", writeConfig(t, ""), "--web.listen-address=")...)
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
	tr := testtree.New(t, nil)
	s := start(ctx, append(flags(tr), "--config", writeConfig(t, ""), "--web.listen-address=", "--table=on", "--log.format=json")...)
	testtree.Eventually(t, "a table", func() bool { return strings.Contains(s.stdout.String(), "memory.available") })
	stop()
	if code := s.wait(t); code != 0 || s.stderr.String() != "" {
		t.Errorf("exit code %d: %s", code, &s.stderr)
	}
	last := s.stdout.String()[strings.LastIndex(s.stdout.String(), "\x1b[H"):]
	for _, want := range []string{"nodeprobe " + release + ", mode observe, node 192.0.2.7", "pid.available", `"msg":"nodeprobe has stopped"`} {
		if !strings.Contains(last, want) {
			t.Errorf("no %q in what stays on the screen:\n%q", want, last)
		}
	}
}

// Own mode needs an API server; that there is none is said in one line.
func TestRunWithoutCluster(t *testing.T) {
	tr := testtree.New(t, nil)
	s := start(t.Context(), append(flags(tr), "--config", writeConfig(t, ""), "--web.listen-address=", "--mode=own")...)
	code := s.wait(t)
	_, last, _ := strings.Cut(s.stderr.String(), "nodeprobe: ")
	want := "no credentials for the API server: use --kubeconfig FILE or kubeconfig: in the configuration file" +
		" (a kubelet's is /etc/kubernetes/kubelet.conf), or run as a pod with a service account, or use mode observe, which needs none\n"
	if code != exitFailed || last != want {
		t.Errorf("exit code %d, want %d and %s:\n%s", code, exitFailed, want, &s.stderr)
	}
}

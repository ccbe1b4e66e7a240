package service

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
)

// programs returns the IDs of the BPF programs that a process has, as the kernel
// shows them.
func programs(t *testing.T, pid int) []string {
	t.Helper()
	files := must.Get(filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid)))(t)
	var ids []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // closed since
		}
		for line := range bytes.Lines(text) {
			if id, found := bytes.CutPrefix(line, []byte("prog_id:")); found {
				ids = append(ids, filepath.Base(file)+"="+string(bytes.TrimSpace(id)))
			}
		}
	}
	return ids
}

// rewrite puts another configuration in the place of an agent's, as an editor does.
func rewrite(t *testing.T, manager *Manager, config agent.Config) {
	t.Helper()
	text := must.Get(json.MarshalIndent(config, "", "  "))(t)
	rewriteText(t, manager, string(text))
}

func rewriteText(t *testing.T, manager *Manager, text string) {
	t.Helper()
	file := filepath.Join(filepath.Dir(manager.Address), "service.yaml")
	must.OK(t, os.WriteFile(file+".new", []byte(text), 0o600))
	must.OK(t, os.Rename(file+".new", file))
}

// What systemctl reload does: the new limits are in force, and the programs in the
// kernel are the old ones.
func TestReload(t *testing.T) {
	t.Parallel()
	need.Root(t)
	config := observe().With(agent.Config{
		"bpf": "auto", "sampleInterval": "1h", "evictionPressureTransitionPeriod": "0s",
		"evictionHard": agent.Hard(map[string]string{"memory.available": "1Mi", "pid.available": "1"}),
	})
	a, manager := start(t, config)
	ctx := patient(t)
	if _, _, err := manager.Until(ctx, "READY"); err != nil {
		t.Fatal(err)
	}
	before := programs(t, a.PID())
	if len(before) == 0 {
		need.Skip(t, "no BPF program could be attached")
	}
	memory := func() float64 {
		t.Helper()
		return must.Get(a.Metric(ctx, `nodeprobe_condition_status{condition="MemoryPressure"}`))(t)
	}
	// reload returns when the manager is told that it is over.
	reload := func() {
		t.Helper()
		began := time.Now()
		must.OK(t, syscall.Kill(a.PID(), syscall.SIGHUP))
		_, begin, err := manager.Until(ctx, "RELOADING")
		must.OK(t, err)
		var micros int64
		if _, err := fmt.Sscan(begin.Fields["MONOTONIC_USEC"], &micros); err != nil || micros <= 0 {
			t.Errorf("told %q: %v", begin.Text, err)
		}
		if _, _, err := manager.Until(ctx, "READY"); err != nil {
			t.Fatal(err)
		}
		t.Logf("reloaded within %s", time.Since(began).Round(time.Millisecond/10))
	}
	wantMetric := func(series string, want float64) {
		t.Helper()
		got, err := a.Metric(ctx, series)
		if err != nil || got != want {
			t.Errorf("%s is %v, want %v: %v", series, got, want, err)
		}
	}
	wantPressure := func(want float64, why string) {
		t.Helper()
		began := time.Now()
		eventually(t, why, func() error {
			if got := memory(); got != want {
				return fmt.Errorf("MemoryPressure is %v", got)
			}
			return nil
		})
		t.Logf("%s: after %s", why, time.Since(began).Round(time.Millisecond/10))
	}
	wantPressure(0, "nothing is short of memory at first")

	// The next sample by itself would be in an hour.
	more := agent.Config{"evictionHard": agent.Hard(map[string]string{"memory.available": "99%", "pid.available": "1"})}
	rewrite(t, manager, config.With(more))
	reload()
	wantPressure(1, "the new threshold is in force")
	wantMetric("nodeprobe_config_last_reload_successful", 1)

	rewriteText(t, manager, "apiVersion: nodeprobe.dev/v1alpha1\nkind: NodeProbeConfiguration\nevictionHard:\n  memory.available: lots\n")
	reload()
	if _, told, err := manager.Until(ctx, "STATUS"); err != nil || !strings.Contains(told.Text, "refused") {
		t.Errorf("told %q: %v", told.Text, err)
	}
	wantMetric("nodeprobe_config_last_reload_successful", 0)
	wantPressure(1, "the old threshold stays in force")
	for _, path := range []string{"/livez", "/readyz"} {
		if code, body, err := a.Get(ctx, path); err != nil || code != 200 {
			t.Errorf("%s: %d: %s %v", path, code, body, err)
		}
	}
	records := must.Get(a.Log())(t)
	last := records[len(records)-1]
	if last.Level != "ERROR" || !strings.Contains(last.Err, "service.yaml:4: evictionHard[memory.available]: ") {
		t.Errorf("last line: %s", last.Line)
	}

	rewrite(t, manager, config.With(agent.Config{"bpf": "off", "mode": "own"}))
	reload()
	wantPressure(0, "what can change does")
	wantMetric("nodeprobe_config_restart_needed", 1)
	wantMetric("nodeprobe_config_last_reload_successful", 1)

	if after := programs(t, a.PID()); strings.Join(after, " ") != strings.Join(before, " ") {
		t.Errorf("programs %q, were %q", after, before)
	}
}

package main

import (
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
)

func verdict(t *testing.T, change func(files map[string]string, d *diary)) []string {
	t.Helper()
	files := map[string]string{
		"/proc/sys/kernel/osrelease":           "6.1.0-56-cloud-amd64\n",
		"/proc/meminfo":                        "MemTotal:         1000 kB\nMemFree: 1 kB\n",
		"/proc/vmstat":                         "nr_free_pages 1\noom_kill 3\n",
		outputName("bpf tests", "stdout"):      "\x16=== RUN   TestA\n\x16--- PASS: TestA (0.00s)\n\x16=== RUN   TestB\n    b_test.go:1: exec: \"clang\": executable file not found in $PATH\n\x16--- SKIP: TestB (0.00s)\n\x16PASS\n",
		outputName("preflight", "stdout"):      "ok  kernel\n",
		outputName("snapshot", "stdout"):       goodSnapshot,
		outputName("preflight json", "stdout"): goodPreflight(),
	}
	d := diary{Steps: []outcome{{Name: "bpf tests"}}}
	if change != nil {
		change(files, &d)
	}
	res := &results{diary: d, files: make(map[string][]byte)}
	for name, text := range files {
		res.files[name] = []byte(text)
	}
	r := &report{kernel: all[0]}
	if err := program.Run(t.Context(), "test", nil, io.Discard, io.Discard, func(p *program.P) { r.judge(p, res) }); err != nil {
		return []string{err.Error()}
	}
	return r.failures
}

func goodPreflight() string {
	var findings []map[string]string
	for _, what := range mustFind {
		findings = append(findings, map[string]string{"what": what, "outcome": "ok", "detail": "v2 at /sys/fs/cgroup"})
	}
	text, err := json.Marshal(findings)
	if err != nil {
		panic(err)
	}
	return string(text)
}

const goodSnapshot = `{
  "snapshot": {
    "tier": "bpf",
    "signals": [
      {"name": "memory.available", "available": 900000, "capacity": 1024000},
      {"name": "nodefs.available", "available": 1, "capacity": 2},
      {"name": "pid.available", "available": 1, "capacity": 2}
    ],
    "conditions": [{"type": "MemoryPressure", "status": "False"}],
    "pressure": [{"resource": "cpu", "full": {}}, {"resource": "memory", "full": {}}, {"resource": "io", "full": {}}],
    "memory": {"total": 1024000, "memAvailable": 800000, "workingSet": 124000},
    "tasks": {"total": 60, "max": 7000},
    "oomKills": 3,
    "kernel": {"oomKills": 0, "directReclaims": 0, "cgroupReclaims": 0, "blockErrors": 0}
  },
  "node": {"status": {"nodeInfo": {"kernelVersion": "6.1.0-56-cloud-amd64", "architecture": "amd64"}}}
}`

func TestJudge(t *testing.T) {
	if got := verdict(t, nil); got != nil {
		t.Fatalf("good results: %q", got)
	}
	replace := func(name, old, text string) func(map[string]string, *diary) {
		return func(files map[string]string, _ *diary) {
			if !strings.Contains(files[name], old) {
				t.Fatalf("no %q in %s", old, name)
			}
			files[name] = strings.Replace(files[name], old, text, 1)
		}
	}
	tests, preflight, snapshot := outputName("bpf tests", "stdout"), outputName("preflight json", "stdout"), outputName("snapshot", "stdout")
	for name, tt := range map[string]struct {
		change func(map[string]string, *diary)
		want   string
	}{
		"step failed":     {func(_ map[string]string, d *diary) { d.Steps[0].Error = "exit status 2" }, "exit status 2"},
		"setup failed":    {func(_ map[string]string, d *diary) { d.Setup = []string{"no disk"} }, "no disk"},
		"other kernel":    {replace("/proc/sys/kernel/osrelease", "6.1.", "6.12."), "release 6.12.0"},
		"test failed":     {replace(tests, "PASS: TestA", "FAIL: TestA"), "TestA"},
		"test skipped":    {replace(tests, "exec: \"clang\": executable file not found in $PATH", "no BTF"), "TestB was skipped: b_test.go:1: no BTF"},
		"no timer":        {replace(tests, "exec: \"clang\": executable file not found in $PATH", "no bpf_timer/tick in kernel 6.1"), "TestB was skipped: b_test.go:1: no bpf_timer/tick"},
		"test panicked":   {replace(tests, "\x16--- SKIP: TestB (0.00s)\n\x16PASS", "panic: oops\n"), "TestB"},
		"no tests":        {func(files map[string]string, _ *diary) { files[tests] = "" }, "none passed"},
		"hook missing":    {replace(preflight, `"outcome":"ok"`, `"outcome":"missing"`), "preflight: missing"},
		"cgroup v1":       {replace(preflight, `{"detail":"v2 at /sys/fs/cgroup","outcome":"ok","what":"memory cgroup"}`, `{"detail":"v1","outcome":"ok","what":"memory cgroup"}`), "not v2"},
		"not looked at":   {replace(preflight, `CAP_BPF`, `CAP_X`), "preflight has no CAP_BPF"},
		"no JSON":         {replace(preflight, `[`, ``), "invalid character"},
		"memory missing":  {replace(snapshot, `"available": 900000, `, ``), "no memory.available"},
		"memory too much": {replace(snapshot, `900000`, `2000000`), "memory.available 2000000"},
		"other capacity":  {replace(snapshot, `"capacity": 1024000`, `"capacity": 1024001`), "MemTotal 1024000"},
		"no stall":        {replace(snapshot, `{"resource": "io", "full": {}}`, `{"resource": "cpu", "full": {}}`), "PSI of"},
		"no OOM kills":    {replace(snapshot, `"oomKills": 3,`, ``), "0 OOM kills"},
		"kills differ":    {replace(snapshot, `"oomKills": 3,`, `"oomKills": 2,`), "2 OOM kills"},
		"no counters":     {replace(snapshot, `"blockErrors": 0`, `"x": 0`), "lacks counters"},
		"pressure":        {replace(snapshot, `"False"`, `"True"`), "MemoryPressure True"},
		"tier":            {replace(snapshot, `"bpf"`, `"psi"`), "tier psi"},
		"error":           {replace(snapshot, `"tier"`, `"errors": [{"source": "node", "error": "oops"}], "tier"`), "node: oops"},
	} {
		t.Run(name, func(t *testing.T) {
			got := verdict(t, tt.change)
			if !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, tt.want) }) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

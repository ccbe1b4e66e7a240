package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
)

// preflightJSON runs the command and checks what holds for every answer.
func preflightJSON(t *testing.T, args ...string) (int, []finding) {
	t.Helper()
	got := nodeprobe(t, append(args, "preflight", "-o", "json")...)
	var findings []finding
	if err := json.Unmarshal([]byte(got.stdout), &findings); err != nil {
		t.Fatalf("%v: %+v", err, got)
	}
	want := outcome{stdout: got.stdout}
	for _, f := range findings {
		switch f.Outcome {
		case outcomeOK:
			if f.Remedy != "" {
				t.Errorf("a remedy for what works: %+v", f)
			}
			continue
		case outcomeMissing, outcomeFails:
			want.code, want.stderr = exitIncomplete, "nodeprobe: not everything works\n"
		case outcomeOff:
		default:
			t.Errorf("outcome of %+v", f)
		}
		if f.Remedy == "" {
			t.Errorf("no remedy for %+v", f)
		}
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(outcome{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	return got.code, findings
}

func TestPreflight(t *testing.T) {
	for _, test := range []struct {
		name    string
		changes map[string]string
		want    map[string]string // what does not work, and its outcome
	}{
		{name: "all there"},
		{
			"a container's cgroup in the place of the node's root",
			map[string]string{"sys/fs/cgroup/memory.current": "16384\n"},
			map[string]string{"memory cgroup": outcomeMissing},
		},
		{
			"no PSI",
			map[string]string{"proc/pressure/cpu": "", "proc/pressure/memory": "", "proc/pressure/io": ""},
			map[string]string{
				"pressure_cpu": outcomeMissing, "pressure_memory": outcomeMissing, "pressure_io": outcomeMissing,
			},
		},
		{
			"no memory cgroup",
			map[string]string{"sys/fs/cgroup/memory.stat": ""},
			map[string]string{"memory cgroup": outcomeFails, "memory_cgroup": outcomeFails},
		},
		{
			"no count of OOM kills",
			map[string]string{"proc/vmstat": "nr_free_pages 1\n"},
			map[string]string{"vmstat": outcomeMissing},
		},
		{
			"no mount table",
			map[string]string{"proc/1/mountinfo": ""},
			map[string]string{"mounts": outcomeMissing, "wake-up mounts": outcomeMissing},
		},
		{
			"no CPUs, no limit of tasks",
			map[string]string{"sys/devices/system/cpu/online": "", "proc/sys/kernel/pid_max": "", "proc/sys/kernel/threads-max": ""},
			map[string]string{"cpus": outcomeFails, "task_limit": outcomeFails, "wake-up task_limits": outcomeMissing},
		},
		{
			"no name of the system",
			map[string]string{"root/etc/os-release": ""},
			map[string]string{"machine": outcomeMissing},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := newTree(t, test.changes)
			_, findings := preflightJSON(t, append(tr.flags(), "--config", writeConfig(t, ""))...)
			got := map[string]string{}
			for _, f := range findings {
				if f.Outcome != outcomeOK {
					got[f.What] = f.Outcome
				}
			}
			want := map[string]string{
				"BPF programs": outcomeOff,
				// The tree is not the kernel's, and has no pods.
				"wake-up pressure_memory_some": outcomeMissing, "wake-up pressure_io_full": outcomeMissing, "wake-up pods_memory_events": outcomeOff, "wake-up pods_memory_events_local": outcomeOff,
			}
			maps.Copy(want, test.want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// BPF is looked at on this kernel, with the types and the capabilities of a
// tree that has none: each of the two says so by itself.
func TestPreflightWithoutBTF(t *testing.T) {
	tr := newTree(t, map[string]string{"sys/kernel/btf/vmlinux": "", "proc/self/status": "CapEff:\t0000000000000000\n"})
	config := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(config, []byte(header), 0o644); err != nil {
		t.Fatal(err)
	}
	_, findings := preflightJSON(t, append(tr.flags(), "--config", config)...)
	for _, what := range []string{"kernel types (BTF)", "CAP_BPF", "CAP_PERFMON"} {
		if !slices.ContainsFunc(findings, func(f finding) bool { return f.What == what && f.Outcome == outcomeMissing }) {
			t.Errorf("%s is not missing in %+v", what, findings)
		}
	}
}

// This machine has whatever it has; the answer has a line for each program.
func TestPreflightOfThisMachine(t *testing.T) {
	_, findings := preflightJSON(t)
	sensor := bpf.Open(bpf.Options{Disabled: true})
	defer sensor.Close()
	for _, h := range sensor.Hooks() {
		if !slices.ContainsFunc(findings, func(f finding) bool { return f.What == "hook "+h.Name }) {
			t.Errorf("no line for %s", h.Name)
		}
	}
}

// The table is one line per finding, and one per remedy, whatever errors say.
func TestPreflightTable(t *testing.T) {
	tr := newTree(t, map[string]string{"proc/sys/kernel/pid_max": "", "proc/sys/kernel/threads-max": ""})
	flags := append(tr.flags(), "--config", writeConfig(t, ""))
	_, findings := preflightJSON(t, flags...)
	want := len(findings)
	for _, f := range findings {
		if f.Remedy != "" {
			want++
		}
	}
	got := nodeprobe(t, append(flags, "preflight")...)
	if got.code != exitIncomplete || strings.Count(got.stdout, "\n") != want {
		t.Errorf("want %d lines, got %+v", want, got)
	}
}

func TestCapabilities(t *testing.T) {
	const bpfBit, perfmonBit, adminBit uint64 = 1 << 39, 1 << 38, 1 << 21
	ok, missing := outcomeOK, outcomeMissing
	for _, test := range []struct {
		name, status string
		want         []string // outcomes of CAP_BPF and CAP_PERFMON
	}{
		{"both", fmt.Sprintf("CapEff:\t%016x\n", bpfBit|perfmonBit), []string{ok, ok}},
		{"one", fmt.Sprintf("CapEff:\t%016x\n", bpfBit), []string{ok, missing}},
		{"by the old one", fmt.Sprintf("CapEff:\t%016x\n", adminBit), []string{ok, ok}},
		{"all", "Name:\ta\nCapPrm:\t0000000000000000\nCapEff:\t000001ffffffffff\nCapBnd:\t0000000000000000\n", []string{ok, ok}},
		{"not permitted, but effective", "CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n", []string{missing, missing}},
		{"no such line", "Name:\ta\n", []string{missing}},
		{"no number", "CapEff:\tall\n", []string{missing}},
		{"more than a number", "CapEff:\t00000000000000001ff\n", []string{missing, missing}},
		{"too large", "CapEff:\t1ffffffffffffffff\n", []string{missing}},
		{"empty", " ", []string{missing}},
		{"no file", "", []string{missing}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := newTree(t, map[string]string{"proc/self/status": test.status})
			var got []string
			for _, f := range findCapabilities(tr.paths().procfs) {
				got = append(got, f.Outcome)
				if (f.Remedy == "") != (f.Outcome == ok) {
					t.Errorf("remedy of %+v", f)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What cannot be read in a PID namespace of a container's comes with what puts it
// right.
func TestPreflightInPIDNamespace(t *testing.T) {
	f := findSource(probe.SourceTaskLimit, fmt.Errorf("read it: %w", probe.ErrPIDNamespace))
	if f.Outcome != outcomeFails || !strings.Contains(f.Remedy, "hostPID: true") {
		t.Errorf("%+v", f)
	}
	f = findSource(probe.SourceTaskLimit, fmt.Errorf("%w: %w", probe.ErrPIDNamespace, errors.ErrUnsupported))
	if f.Outcome != outcomeMissing || !strings.Contains(f.Remedy, `"0%"`) {
		t.Errorf("where the node is a container: %+v", f)
	}
}

// A kernel without a memory controller costs the pods' limit only; where there are no
// cgroups at all, /sys is not the node's.
func TestPreflightWithoutMemoryController(t *testing.T) {
	sysfs := t.TempDir()
	if f := findCgroup(sysfs); f.Outcome != outcomeFails || !strings.Contains(f.Remedy, "mount the host's /sys/fs/cgroup") {
		t.Errorf("no cgroups: %+v", f)
	}
	dir := filepath.Join(sysfs, "fs/cgroup")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpuset cpu io pids\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if f := findCgroup(sysfs); f.Outcome != outcomeMissing || !strings.Contains(f.Remedy, "cgroup_enable=memory") {
		t.Errorf("no memory controller: %+v", f)
	}
}

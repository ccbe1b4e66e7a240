package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/preflight"
	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

// preflightJSON runs the command and checks what holds for every answer.
func preflightJSON(t *testing.T, args ...string) (int, []preflight.Finding) {
	t.Helper()
	got := command(t, append(args, "preflight", "-o", "json")...)
	var findings []preflight.Finding
	if err := json.Unmarshal([]byte(got.stdout), &findings); err != nil {
		t.Fatalf("%v: %+v", err, got)
	}
	want := outcome{stdout: got.stdout}
	for _, f := range findings {
		switch f.Outcome {
		case preflight.OK:
			if f.Remedy != "" {
				t.Errorf("a remedy for what works: %+v", f)
			}
			continue
		case preflight.Missing, preflight.Fails:
			want.code, want.stderr = exitIncomplete, "nodeprobe: not everything works\n"
		case preflight.Off:
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
			map[string]string{"memory cgroup": preflight.Missing},
		},
		{
			"no PSI",
			map[string]string{"proc/pressure/cpu": "", "proc/pressure/memory": "", "proc/pressure/io": ""},
			map[string]string{
				"pressure_cpu": preflight.Missing, "pressure_memory": preflight.Missing, "pressure_io": preflight.Missing,
			},
		},
		{
			"no memory cgroup",
			map[string]string{"sys/fs/cgroup/memory.stat": ""},
			map[string]string{"memory cgroup": preflight.Fails, "memory_cgroup": preflight.Fails},
		},
		{
			"no count of OOM kills",
			map[string]string{"proc/vmstat": "nr_free_pages 1\n"},
			map[string]string{"vmstat": preflight.Missing},
		},
		{
			"no mount table",
			map[string]string{"proc/1/mountinfo": ""},
			map[string]string{"mounts": preflight.Missing, "wake-up mounts": preflight.Missing},
		},
		{
			"no CPUs, no limit of tasks",
			map[string]string{"sys/devices/system/cpu/online": "", "proc/sys/kernel/pid_max": "", "proc/sys/kernel/threads-max": ""},
			map[string]string{"cpus": preflight.Fails, "task_limit": preflight.Fails, "wake-up task_limits": preflight.Missing},
		},
		{
			"no name of the system",
			map[string]string{"root/etc/os-release": ""},
			map[string]string{"machine": preflight.Missing},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := testtree.New(t, test.changes)
			_, findings := preflightJSON(t, append(flags(tr), "--config", writeConfig(t, ""))...)
			got := map[string]string{}
			for _, f := range findings {
				if f.Outcome != preflight.OK && f.What != "memory.min" { // which is this machine's
					got[f.What] = f.Outcome
				}
			}
			want := map[string]string{
				"BPF programs": preflight.Off, "memory lock": preflight.Off,
				// The tree is not the kernel's, and has no pods.
				"wake-up pressure_memory_some": preflight.Missing, "wake-up pressure_io_full": preflight.Missing, "wake-up pods_memory_events": preflight.Off, "wake-up pods_memory_events_local": preflight.Off,
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
	tr := testtree.New(t, map[string]string{"sys/kernel/btf/vmlinux": "", "proc/self/status": "CapEff:\t0000000000000000\n"})
	config := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(config, []byte(header), 0o644); err != nil {
		t.Fatal(err)
	}
	_, findings := preflightJSON(t, append(flags(tr), "--config", config)...)
	for _, what := range []string{"kernel types (BTF)", "CAP_BPF", "CAP_PERFMON"} {
		if !slices.ContainsFunc(findings, func(f preflight.Finding) bool { return f.What == what && f.Outcome == preflight.Missing }) {
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
		if !slices.ContainsFunc(findings, func(f preflight.Finding) bool { return f.What == "hook "+h.Name }) {
			t.Errorf("no line for %s", h.Name)
		}
	}
}

// The table is one line per finding, and one per remedy, whatever errors say.
func TestPreflightTable(t *testing.T) {
	tr := testtree.New(t, map[string]string{"proc/sys/kernel/pid_max": "", "proc/sys/kernel/threads-max": ""})
	flags := append(flags(tr), "--config", writeConfig(t, ""))
	_, findings := preflightJSON(t, flags...)
	want := len(findings)
	for _, f := range findings {
		if f.Remedy != "" {
			want++
		}
	}
	got := command(t, append(flags, "preflight")...)
	if got.code != exitIncomplete || strings.Count(got.stdout, "\n") != want {
		t.Errorf("want %d lines, got %+v", want, got)
	}
}

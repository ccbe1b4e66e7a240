package preflight

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/internal/testtree"
	"github.com/nodeprobe/nodeprobe/probe"
)

func TestCapabilities(t *testing.T) {
	const bpfBit, perfmonBit, adminBit uint64 = 1 << 39, 1 << 38, 1 << 21
	ok, missing := OK, Missing
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
			tr := testtree.New(t, map[string]string{"proc/self/status": test.status})
			var got []string
			for _, f := range findCapabilities(tr.Procfs()) {
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
	if f.Outcome != Fails || !strings.Contains(f.Remedy, "hostPID: true") {
		t.Errorf("%+v", f)
	}
	f = findSource(probe.SourceTaskLimit, fmt.Errorf("%w: %w", probe.ErrPIDNamespace, errors.ErrUnsupported))
	if f.Outcome != Missing || !strings.Contains(f.Remedy, `"0%"`) {
		t.Errorf("where the node is a container: %+v", f)
	}
}

// A kernel without a memory controller costs the pods' limit only; where there are no
// cgroups at all, /sys is not the node's.
func TestPreflightWithoutMemoryController(t *testing.T) {
	sysfs := t.TempDir()
	if f := findCgroup(sysfs); f.Outcome != Fails || !strings.Contains(f.Remedy, "mount the host's /sys/fs/cgroup") {
		t.Errorf("no cgroups: %+v", f)
	}
	dir := filepath.Join(sysfs, "fs/cgroup")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpuset cpu io pids\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if f := findCgroup(sysfs); f.Outcome != Missing || !strings.Contains(f.Remedy, "cgroup_enable=memory") {
		t.Errorf("no memory controller: %+v", f)
	}
}

// A path that hangs is named, and keeps nobody from starting.
func TestWrongPathHangs(t *testing.T) {
	tr := testtree.New(t, nil)
	cfg := nodeprobe.Config{Procfs: tr.Procfs(), Sysfs: tr.Sysfs(), Rootfs: filepath.Join(t.TempDir(), "fifo")}
	answer := testtree.HangingFile(t, cfg.Rootfs)
	defer answer("") // ends what hangs
	findings := make(chan []Finding, 1)
	go func() { findings <- WrongPaths(&cfg) }()
	select {
	case got := <-findings:
		if len(got) != 1 || got[0].What != "--path.rootfs" || !strings.Contains(got[0].Detail, "open "+cfg.Rootfs+": no answer within 2s") {
			t.Errorf("%+v", got)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("hangs")
	}
}

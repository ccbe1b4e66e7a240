package usage

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe/cgroup"
	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"
)

// scrape returns the series by the values of their labels, and what Prometheus'
// conventions have against their names.
func scrape(t *testing.T, c prometheus.Collector) (values map[string]float64, metrics []*dto.Metric) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	values = map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() { // sorted by their names
				labels = append(labels, l.GetValue())
			}
			values[strings.Join(labels, " ")] = m.GetCounter().GetValue()
			metrics = append(metrics, m)
		}
	}
	return values, metrics
}

// Victims are counted by container, and what is of no pod together. There are never more
// series than 64, of those that were hit last, and none that is older than a day.
func TestVictimsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewVictims(VictimsConfig{Procfs: "/nope", Sysfs: "/nope", Rootfs: "/nope", Hooked: true, Record: func(string, string, string) {}, Logger: slog.New(slog.DiscardHandler)})
		if got, _ := scrape(t, v); len(got) != 1 || got["   "] != 0 {
			t.Errorf("before anything: %v", got)
		}
		began := time.Now()
		web := owner{"team-a", "web-0", "0a1b", "server"}
		v.tally.add(web, time.Now())
		v.Killed(&bpf.Event{PID: 1 << 30, CgroupID: 1 << 60}) // of which nothing is left
		time.Sleep(time.Minute)
		v.tally.add(web, time.Now())
		got, metrics := scrape(t, v)
		if diff := cmp.Diff(map[string]float64{"server team-a web-0 0a1b": 2, "   ": 1}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		for _, m := range metrics {
			if at := m.GetCounter().GetCreatedTimestamp().AsTime(); !at.Equal(began) {
				t.Errorf("%v: counts since %s, want %s", m, at, began)
			}
		}
		for i := range 200 { // a job whose pods all die
			time.Sleep(time.Second)
			v.tally.add(owner{pod: fmt.Sprint("job-", i)}, time.Now())
			v.tally.add(web, time.Now())
		}
		got, _ = scrape(t, v)
		if got["server team-a web-0 0a1b"] != 202 || got["  job-199 "] != 1 || got["  job-136 "] != 0 || len(got) != 1+maxOwners {
			t.Errorf("%d series: %v", len(got), got)
		}
		time.Sleep(rememberOwner + time.Second)
		if got, _ := scrape(t, v); len(got) != 1 || got["   "] != 1 {
			t.Errorf("after a day: %v", got)
		}
		v.tally.add(owner{uid: "\xff"}, time.Now())
		if got, _ := scrape(t, v); len(got) != 2 {
			t.Errorf("a name that is no text: %v", got)
		}
		v.cfg.Hooked = false
		if got, _ := scrape(t, v); len(got) != 0 {
			t.Errorf("without events: %v", got)
		}
	})
}

// The pods' stalls are read wherever their cgroup is, as soon as there is one and as long
// as there is.
func TestStalls(t *testing.T) {
	sysfs := t.TempDir()
	s := NewStalls(sysfs)
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(sysfs, "fs/cgroup", path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(path string) {
		t.Helper()
		if err := os.RemoveAll(filepath.Join(sysfs, "fs/cgroup", path)); err != nil {
			t.Fatal(err)
		}
	}
	want := func(step string, want map[string]float64) {
		t.Helper()
		got, _ := scrape(t, s)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step, diff)
		}
	}
	const psi = "some avg10=1.50 avg60=0.10 avg300=2.35 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"
	want("no cgroups", map[string]float64{})
	write("memory/kubepods/memory.usage_in_bytes", "0\n")
	write("unified/cgroup.controllers", "\n")
	want("version 1 has no PSI", map[string]float64{})
	write("unified/kubepods.slice/memory.pressure", psi)
	want("the first pod", map[string]float64{"some memory": 2.5, "full memory": 1e-6})
	write("unified/kubepods.slice/cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=7000000\n") // before Linux 5.13
	write("unified/kubepods.slice/io.pressure", "garbage\nsome total=x\nfull total=-1\nsome total=99999999999999999999\n")
	want("its resources come one by one", map[string]float64{"some memory": 2.5, "full memory": 1e-6, "some cpu": 7})
	s.Close()
	want("closed", map[string]float64{})

	s = NewStalls(sysfs)
	t.Cleanup(s.Close)
	remove("unified")
	want("the cgroups are gone", map[string]float64{})
	write("cgroup.controllers", "\n")
	write("kubepods/memory.pressure", psi)
	want("another driver", map[string]float64{"some memory": 2.5, "full memory": 1e-6})
}

// With the kernel's own files, a cgroup that is removed and made again is found again.
func TestStallsOfKernel(t *testing.T) {
	const cgroupfs = "/sys/fs/cgroup"
	root := cgroup.Unified(cgroupfs)
	if root == "" {
		probetest.Lacking(t, "no cgroup v2 below %s", cgroupfs)
	}
	pods := filepath.Join(root, "kubepods")
	switch err := os.Mkdir(pods, 0o755); {
	case errors.Is(err, fs.ErrExist):
		t.Skipf("a kubelet's cgroup is there: %v", err)
	case err != nil: // not root
		probetest.Lacking(t, "%v", err)
	}
	t.Cleanup(func() { os.Remove(pods) })
	if _, err := os.Stat(filepath.Join(pods, "cpu.pressure")); err != nil {
		t.Skip(err) // needs PSI
	}
	s := NewStalls("/sys")
	t.Cleanup(s.Close)
	for _, step := range []struct {
		name string
		do   func(string) error
		want bool
	}{
		{"there", func(string) error { return nil }, true},
		{"gone", os.Remove, false},
		{"back", func(path string) error { return os.Mkdir(path, 0o755) }, true},
	} {
		if err := step.do(pods); err != nil {
			t.Fatal(err)
		}
		got, _ := scrape(t, s)
		if _, ok := got["some memory"]; ok != step.want || step.want && len(got) < 5 {
			t.Errorf("%s: %v", step.name, got)
		}
	}
}

// What the kernel has never written makes no series.
func TestStallsOfGarbage(t *testing.T) {
	sysfs := t.TempDir()
	pods := filepath.Join(sysfs, "fs/cgroup/kubepods")
	if err := os.MkdirAll(pods, 0o755); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{"../cgroup.controllers": "", "cpu.pressure": "\xff avg10=0.00 total=1\nsome total=x\nfull"} {
		if err := os.WriteFile(filepath.Join(pods, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := scrape(t, NewStalls(sysfs)); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

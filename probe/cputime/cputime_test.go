package cputime

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// Of a machine with two CPUs.
const stat = `cpu  1018 20 503 99321 204 7 11 3 5 0
cpu0 500 10 250 49660 102 3 5 1 5 0
cpu1 518 10 253 49661 102 4 6 2 0 0
intr 93412 0 0 12
`

func TestCollector(t *testing.T) {
	dir, log, reg := t.TempDir(), &strings.Builder{}, prometheus.NewPedanticRegistry()
	c := New(dir, slog.New(slog.NewTextHandler(log, nil)))
	t.Cleanup(c.Close)
	reg.MustRegister(c)
	scrape := func() map[string]float64 {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				got[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
		return got
	}
	want := map[string]float64{"user": 10.18, "nice": 0.2, "system": 5.03, "idle": 993.21, "iowait": 2.04, "irq": 0.07, "softirq": 0.11, "steal": 0.03}
	for _, step := range []struct {
		name, stat string
		want       map[string]float64
		warnings   int
	}{
		{"no file", "", nil, 1},
		{"still none", "", nil, 1},
		{"all of them", stat, want, 1},
		{"an estimate was corrected", strings.Replace(stat, "99321 204", "99320 203", 1), want, 1},
		{"another format", "cpus 1\n", nil, 2},
		{"too few columns", "cpu  1 2 3 4 5\n", nil, 2},
		{"a line that is cut", "cpu  1018 20 503 99321 204 7 11 3", nil, 2},
		{"not a number", "cpu  1018 20 503 99321 204 7 11 three 0 0\n", nil, 2},
		{"as before", stat, want, 2},
	} {
		if step.stat != "" {
			if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(step.stat), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if step.want == nil {
			step.want = map[string]float64{}
		}
		if diff := cmp.Diff(step.want, scrape()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
		if n := strings.Count(log.String(), "WARN"); n != step.warnings {
			t.Errorf("%s: %d warnings, want %d:\n%s", step.name, n, step.warnings, log)
		}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if got := scrape(); len(got) > 0 || c.file != nil {
		t.Errorf("after Close: %v", got)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

// The kernel's own file is read, and no more of it than the line that counts.
func TestOnThisMachine(t *testing.T) {
	c := New("/proc", slog.New(slog.DiscardHandler))
	t.Cleanup(c.Close)
	ticks, err := c.read()
	if err != nil || ticks[0] == 0 || ticks[3] == 0 {
		t.Fatal(ticks, err)
	}
	again, err := c.read()
	if err != nil {
		t.Fatal(err)
	}
	for i := range again {
		if again[i] < ticks[i] {
			t.Errorf("%s: %d after %d", modes[i], again[i], ticks[i])
		}
	}
}

func BenchmarkScrape(b *testing.B) {
	c := New("/proc", slog.New(slog.DiscardHandler))
	b.Cleanup(c.Close)
	for b.Loop() {
		if _, err := c.read(); err != nil {
			b.Fatal(err)
		}
	}
}

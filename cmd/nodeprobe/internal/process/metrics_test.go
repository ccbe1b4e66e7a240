package process

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

func gather(t *testing.T, cs ...prometheus.Collector) map[string]*dto.MetricFamily {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(cs...)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]*dto.MetricFamily{}
	for _, f := range families {
		got[f.GetName()] = f
	}
	return got
}

// What we export has the name, the type and, nearly, the value of client_golang's.
func TestCollector(t *testing.T) {
	ours := gather(t, NewCollector(time.Now()))
	library := gather(t, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	want := []string{"go_goroutines", "go_threads", "process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds"}
	if len(ours) != len(want) {
		t.Errorf("%d metrics, want %d", len(ours), len(want))
	}
	value := func(f *dto.MetricFamily) float64 {
		m := f.GetMetric()[0]
		return m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	for _, name := range want {
		o, l := ours[name], library[name]
		if o == nil || l == nil {
			t.Errorf("%s: ours %v, the library's %v", name, o, l)
			continue
		}
		if o.GetType() != l.GetType() || o.GetHelp() != l.GetHelp() {
			t.Errorf("%s is %s %q, want %s %q", name, o.GetType(), o.GetHelp(), l.GetType(), l.GetHelp())
		}
		// CPU time grows, and the start is when this test ran; what else there is hardly moves.
		if slices.Contains(want[:2], name) || strings.Contains(name, "resident") {
			if a, b := value(o), value(l); a < b/2 || a > b*2 {
				t.Errorf("%s is %v, the library says %v", name, a, b)
			}
		}
		if value(o) <= 0 {
			t.Errorf("%s is %v", name, value(o))
		}
	}
}

// BenchmarkCollect is what a scrape pays for the metrics of the process itself: ours,
// and those of client_golang's collectors with as little as they can be restricted to.
func BenchmarkCollect(b *testing.B) {
	goCollector := collectors.NewGoCollector(collectors.WithGoCollectorMemStatsMetricsDisabled(), collectors.WithoutGoCollectorRuntimeMetrics(collectors.MetricsAll.Matcher))
	for _, bench := range []struct {
		name       string
		collectors []prometheus.Collector
	}{
		{"ours", []prometheus.Collector{NewCollector(time.Now())}},
		{"library", []prometheus.Collector{collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), goCollector}},
		{"library-go", []prometheus.Collector{goCollector}},
		{"library-process", []prometheus.Collector{collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			reg := prometheus.NewRegistry()
			reg.MustRegister(bench.collectors...)
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				families, err := reg.Gather()
				if err != nil {
					b.Fatal(err)
				}
				n = len(families)
				for _, f := range families {
					_, _ = expfmt.MetricFamilyToText(io.Discard, f)
				}
			}
			b.ReportMetric(float64(n), "metrics")
		})
	}
}

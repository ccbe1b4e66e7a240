package process

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	descCPUSeconds = prometheus.NewDesc("process_cpu_seconds_total",
		"Total user and system CPU time spent in seconds.", nil, nil)
	descResident = prometheus.NewDesc("process_resident_memory_bytes",
		"Resident memory size in bytes.", nil, nil)
	descStart = prometheus.NewDesc("process_start_time_seconds",
		"Start time of the process since unix epoch in seconds.", nil, nil)
	descGoroutines = prometheus.NewDesc("go_goroutines",
		"Number of goroutines that currently exist.", nil, nil)
	descLocked = prometheus.NewDesc("nodeprobe_locked_bytes",
		"Memory of this process that is locked: 0 if it should be and is not, absent if it should not be.", nil, nil)
	descMajorFaults = prometheus.NewDesc("nodeprobe_major_faults_total",
		"Page faults of this process that waited for the disk, since everything was rehearsed.", nil, nil)
	descRehearsals = prometheus.NewDesc("nodeprobe_rehearsals_total",
		"Rehearsals of what this process will have to do in a hurry, by how they ended: incomplete if a step failed.", []string{"result"}, nil)
	descThreads = prometheus.NewDesc("go_threads",
		"Number of OS threads created.", nil, nil)
)

// collector exports what the process costs, and what shows a leak, or threads that hang in
// the kernel. client_golang's own collectors cost more than six times as much at each
// scrape (see BenchmarkCollect): that of the process reads some ten files of /proc, network
// statistics among them, and cannot be restricted.
type collector struct{ start time.Time }

// NewCollector returns a collector of five metrics of this process, under the names that
// client_golang's own collectors use. start is when the process started.
func NewCollector(start time.Time) prometheus.Collector { return collector{start} }

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{descCPUSeconds, descResident, descStart, descGoroutines, descThreads} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(descStart, prometheus.GaugeValue, float64(c.start.UnixMilli())/1e3)
	if cpu, ok := CPUTime(); ok {
		ch <- prometheus.MustNewConstMetric(descCPUSeconds, prometheus.CounterValue, cpu.Seconds())
	}
	if bytes, ok := ResidentBytes(); ok {
		ch <- prometheus.MustNewConstMetric(descResident, prometheus.GaugeValue, float64(bytes))
	}
	threads, _ := runtime.ThreadCreateProfile(nil)
	ch <- prometheus.MustNewConstMetric(descGoroutines, prometheus.GaugeValue, float64(runtime.NumGoroutine()))
	ch <- prometheus.MustNewConstMetric(descThreads, prometheus.GaugeValue, float64(threads))
}

// Describe implements prometheus.Collector.
func (m *Memory) Describe(ch chan<- *prometheus.Desc) {
	ch <- descLocked
	ch <- descMajorFaults
	ch <- descRehearsals
}

// Collect implements prometheus.Collector.
func (m *Memory) Collect(ch chan<- prometheus.Metric) {
	s := m.State()
	if s.Limit > 0 {
		ch <- prometheus.MustNewConstMetric(descLocked, prometheus.GaugeValue, float64(s.Bytes))
		ch <- prometheus.MustNewConstMetric(descRehearsals, prometheus.CounterValue, float64(m.complete.Load()), "success")
		ch <- prometheus.MustNewConstMetric(descRehearsals, prometheus.CounterValue, float64(m.incomplete.Load()), "incomplete")
	}
	ch <- prometheus.MustNewConstMetric(descMajorFaults, prometheus.CounterValue, float64(s.MajorFaults))
}

package main

import (
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

var (
	descCPUSeconds = prometheus.NewDesc("process_cpu_seconds_total",
		"Total user and system CPU time spent in seconds.", nil, nil)
	descResident = prometheus.NewDesc("process_resident_memory_bytes",
		"Resident memory size in bytes.", nil, nil)
	descStart = prometheus.NewDesc("process_start_time_seconds",
		"Start time of the process since unix epoch in seconds.", nil, nil)
)

// selfCollector exports what the process itself costs, under the names that
// every exporter has them. The library's collector reads ten files of /proc for
// it at each scrape, network statistics included, which costs more than a
// sample of the node.
type selfCollector struct{ start time.Time }

// Describe implements prometheus.Collector.
func (selfCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- descCPUSeconds
	ch <- descResident
	ch <- descStart
}

// Collect implements prometheus.Collector.
func (c selfCollector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(descStart, prometheus.GaugeValue, float64(c.start.UnixMilli())/1e3)
	if cpu, ok := cpuTime(); ok {
		ch <- prometheus.MustNewConstMetric(descCPUSeconds, prometheus.CounterValue, cpu.Seconds())
	}
	if pages, ok := residentPages(); ok {
		ch <- prometheus.MustNewConstMetric(descResident, prometheus.GaugeValue, float64(pages*os.Getpagesize()))
	}
}

// cpuTime is what this process has used so far, in user space and in the kernel.
func cpuTime() (time.Duration, bool) {
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) != nil {
		return 0, false
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), true
}

// residentPages is the second field of /proc/self/statm.
func residentPages() (int, bool) {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(b))
	if len(fields) < 2 {
		return 0, false
	}
	pages, err := strconv.Atoi(fields[1])
	return pages, err == nil
}

package main

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	descGoroutines = prometheus.NewDesc("go_goroutines",
		"Number of goroutines that currently exist.", nil, nil)
	descThreads = prometheus.NewDesc("go_threads",
		"Number of OS threads created.", nil, nil)
)

// goCollector exports what tells a leak, or that threads hang in the kernel. The
// library's collector reads the garbage collector's and the heap's statistics for
// every scrape.
type goCollector struct{}

// Describe implements prometheus.Collector.
func (goCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- descGoroutines
	ch <- descThreads
}

// Collect implements prometheus.Collector.
func (goCollector) Collect(ch chan<- prometheus.Metric) {
	threads, _ := runtime.ThreadCreateProfile(nil)
	ch <- prometheus.MustNewConstMetric(descGoroutines, prometheus.GaugeValue, float64(runtime.NumGoroutine()))
	ch <- prometheus.MustNewConstMetric(descThreads, prometheus.GaugeValue, float64(threads))
}

package usage

import (
	"bytes"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/cgroup"
	"github.com/nodeprobe/nodeprobe/probe/hotfile"
)

var descStalls = prometheus.NewDesc("nodeprobe_pods_pressure_stall_seconds_total",
	"Time in which some or all tasks of all pods together stalled on a resource.", []string{"resource", "kind"}, nil)

// Stalls exports the PSI of the cgroup that holds all pods, which a node's own shows only
// mixed with that of its services (Linux 4.20, cgroup v2). It reads at each scrape. Where
// there is no such cgroup, or it has no PSI, there is no series. It implements
// prometheus.Collector.
type Stalls struct {
	cgroupfs string

	mu     sync.Mutex // guards the rest
	files  [probe.NumResources]hotfile.File
	found  bool // whether files have paths
	closed bool
}

// NewStalls returns the Stalls of the node whose /sys is at sysfs. It opens nothing yet.
// Close closes what a scrape opens.
func NewStalls(sysfs string) *Stalls { return &Stalls{cgroupfs: filepath.Join(sysfs, "fs", "cgroup")} }

// Describe implements prometheus.Collector.
func (s *Stalls) Describe(ch chan<- *prometheus.Desc) { ch <- descStalls }

// Collect implements prometheus.Collector.
func (s *Stalls) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.find() {
		return
	}
	s.found = false // unless one can be read: pods may be kept elsewhere next time
	for i := range s.files {
		text, err := s.files[i].Read()
		if err != nil {
			continue
		}
		s.found = true
		for len(text) > 0 {
			var line []byte
			line, text, _ = hotfile.NextLine(text)
			kind, fields := hotfile.NextField(line)
			if total, ok := total(fields); ok && (string(kind) == "some" || string(kind) == "full") {
				ch <- prometheus.MustNewConstMetric(descStalls, prometheus.CounterValue, total.Seconds(), probe.Resource(i).String(), string(kind))
			}
		}
	}
}

// find looks for the cgroup of all pods if it is not known.
func (s *Stalls) find() bool {
	if s.found {
		return true
	}
	pods := cgroup.Pods(cgroup.Unified(s.cgroupfs))
	if pods == "" {
		return false
	}
	for i := range s.files {
		s.files[i].Close()
		s.files[i] = hotfile.New(filepath.Join(pods, probe.Resource(i).String()+".pressure"))
	}
	return true
}

// total returns the last field of a line such as
//
//	some avg10=0.00 avg60=0.10 avg300=2.35 total=184412
func total(fields []byte) (time.Duration, bool) {
	_, number, ok := bytes.Cut(fields, []byte("total="))
	if !ok {
		return 0, false
	}
	us, err := hotfile.ParseUint(number)
	return time.Duration(us) * time.Microsecond, err == nil
}

// Close closes the files. A scrape that is still under way finds nothing.
func (s *Stalls) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for i := range s.files {
		s.files[i].Close()
	}
}

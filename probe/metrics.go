package probe

import (
	"fmt"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are about sampling itself. The figures of the node are exported by collector,
// from the latest Snapshot.
type metrics struct {
	sampleSeconds prometheus.Histogram
	readErrors    [NumSources]prometheus.Counter
}

// newMetrics registers the metrics with reg unless that is nil.
func newMetrics(reg prometheus.Registerer, s *Sampler) (*metrics, error) {
	m := &metrics{
		sampleSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "nodeprobe_sampler_sample_duration_seconds",
			Help:    "Time that one sample of the node took.",
			Buckets: []float64{25e-6, 50e-6, 100e-6, 250e-6, 1e-3, 10e-3, 100e-3, 1},
		}),
	}
	readErrors := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nodeprobe_sampler_read_errors_total",
		Help: "Samples in which a source could not be read.",
	}, []string{"source"})
	for i := range m.readErrors {
		m.readErrors[i] = readErrors.WithLabelValues(Source(i).String())
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.sampleSeconds, readErrors, &collector{sampler: s}} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// collector exports the latest Snapshot. What is absent from that is absent from the
// scrape.
type collector struct{ sampler *Sampler }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("nodeprobe_"+name, help, labels, nil)
}

var (
	descAvailable = map[string]*prometheus.Desc{
		"bytes":  desc("signal_available_bytes", "What is left of a limited resource, in bytes.", "signal"),
		"inodes": desc("signal_available_inodes", "What is left of a limited resource, in inodes.", "signal"),
		"tasks":  desc("signal_available_tasks", "What is left of a limited resource, in tasks.", "signal"),
	}
	descCapacity = map[string]*prometheus.Desc{
		"bytes":  desc("signal_capacity_bytes", "Size of a limited resource, in bytes.", "signal"),
		"inodes": desc("signal_capacity_inodes", "Size of a limited resource, in inodes.", "signal"),
		"tasks":  desc("signal_capacity_tasks", "Size of a limited resource, in tasks.", "signal"),
	}
	descMemory       = desc("memory_meminfo_bytes", "MemTotal, MemFree and MemAvailable of /proc/meminfo.", "field")
	descWorkingSet   = desc("memory_working_set_bytes", "Usage of the root memory cgroup less its inactive file cache.")
	descSwap         = desc("memory_swap_bytes", "SwapTotal and SwapFree of /proc/meminfo.", "field")
	descStallRatio   = desc("pressure_stall_ratio", "Share of a window in which some or all tasks stalled on a resource.", "resource", "kind", "window")
	descStallSeconds = desc("pressure_stall_seconds_total", "Time in which some or all tasks stalled on a resource.", "resource", "kind")
	descTasks        = desc("tasks_existing", "Tasks (threads) that exist.")
	descRunning      = desc("tasks_running", "Tasks (threads) that can run.")
	descOOMKills     = desc("oom_kills_total", "Processes that the kernel killed for lack of memory since boot.")
	descCPUs         = desc("capacity_cpus", "CPUs that are online.")
	descStorage      = desc("capacity_ephemeral_storage_bytes", "Size of the filesystem that holds the root directory.")
	descHugePages    = desc("capacity_hugepages_bytes", "Persistent pool of huge pages, by the size of a page.", "page_size_bytes")
	descReadOnly     = desc("filesystem_readonly", "Whether a filesystem takes no writes: by mount option, or because it gave up after an error.", "filesystem")
	descMachine      = desc("machine_info", "What the machine is; always 1.", "kernel_version", "os_image", "architecture", "machine_id", "system_uuid", "boot_id")
	descWakeups      = desc("sampler_wakeups_total", "Samples taken, by what asked for them.", "cause")
	descSampled      = desc("sampler_last_sample_timestamp_seconds", "When the latest sample was taken.")
)

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range []map[string]*prometheus.Desc{descAvailable, descCapacity} {
		for _, d := range m {
			ch <- d
		}
	}
	for _, d := range []*prometheus.Desc{
		descMemory, descWorkingSet, descSwap, descStallRatio, descStallSeconds, descTasks, descRunning,
		descOOMKills, descCPUs, descStorage, descHugePages, descReadOnly, descMachine, descWakeups, descSampled,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	for cause, taken := range c.sampler.Causes() {
		counter(descWakeups, float64(taken), Cause(cause).String())
	}
	snap, ok := c.sampler.Last()
	if !ok {
		return
	}
	gauge(descSampled, float64(snap.Time.UnixNano())/1e9)
	for i, o := range snap.Signals {
		if sig := Signal(i); o.OK && sig.Evicts() { // the others are below
			gauge(descAvailable[sig.Unit()], float64(o.Available), sig.String())
			gauge(descCapacity[sig.Unit()], float64(o.Capacity), sig.String())
		}
	}
	if snap.Memory.OK {
		gauge(descMemory, float64(snap.Memory.Total), "MemTotal")
		gauge(descMemory, float64(snap.Memory.Free), "MemFree")
		gauge(descMemory, float64(snap.Memory.Available), "MemAvailable")
	}
	if snap.Memory.CgroupOK {
		gauge(descWorkingSet, float64(snap.Memory.WorkingSet))
	}
	if snap.Swap.OK {
		gauge(descSwap, float64(snap.Swap.Total), "SwapTotal")
		gauge(descSwap, float64(snap.Swap.Free), "SwapFree")
	}
	for i := range snap.Pressure {
		stall, name := &snap.Pressure[i], Resource(i).String()
		for _, l := range []struct {
			kind string
			line *StallLine
			ok   bool
		}{{"some", &stall.Some, stall.OK}, {"full", &stall.Full, stall.FullOK}} {
			if l.ok {
				gauge(descStallRatio, l.line.Avg10, name, l.kind, "10s")
				gauge(descStallRatio, l.line.Avg60, name, l.kind, "60s")
				gauge(descStallRatio, l.line.Avg300, name, l.kind, "300s")
				counter(descStallSeconds, l.line.Total.Seconds(), name, l.kind)
			}
		}
	}
	if snap.Tasks.OK {
		gauge(descTasks, float64(snap.Tasks.Total))
		gauge(descRunning, float64(snap.Tasks.Running))
	}
	if snap.OOMKills.OK {
		counter(descOOMKills, float64(snap.OOMKills.Value))
	}
	if snap.Capacity.CPUs > 0 {
		gauge(descCPUs, float64(snap.Capacity.CPUs))
	}
	if snap.Capacity.EphemeralStorage > 0 {
		gauge(descStorage, float64(snap.Capacity.EphemeralStorage))
	}
	for _, f := range []struct {
		name string
		fs   *Filesystem
	}{{"nodefs", &snap.NodeFs}, {"imagefs", &snap.ImageFs}} {
		if _, readOnly, known := f.fs.ReadOnly(); known {
			gauge(descReadOnly, boolean(readOnly), f.name)
		}
	}
	for _, p := range snap.Capacity.HugePages[:snap.Capacity.NumHugePages] {
		gauge(descHugePages, float64(p.PageSize*p.Total), strconv.FormatInt(p.PageSize, 10))
	}
	m := &snap.Machine
	gauge(descMachine, 1, m.KernelVersion, m.OSImage, m.Architecture, m.MachineID, m.SystemUUID, m.BootID)
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

package bpf

import "github.com/prometheus/client_golang/prometheus"

var (
	descAttached = prometheus.NewDesc("nodeprobe_bpf_hook_attached",
		"Whether a BPF program is attached.", []string{"signal", "hook"}, nil)
	descRuns = prometheus.NewDesc("nodeprobe_bpf_program_runs_total",
		"Runs of a BPF program; only where kernel.bpf_stats_enabled is set.", []string{"hook"}, nil)
	descRunTime = prometheus.NewDesc("nodeprobe_bpf_program_run_seconds_total",
		"Time that a BPF program ran; only where kernel.bpf_stats_enabled is set.", []string{"hook"}, nil)
	descTasks = prometheus.NewDesc("nodeprobe_bpf_tasks",
		"Tasks that hold a PID in the initial PID namespace.", nil, nil)
	descForks = prometheus.NewDesc("nodeprobe_bpf_forks_total",
		"Tasks created since the programs were attached.", nil, nil)
	descExits = prometheus.NewDesc("nodeprobe_bpf_exits_total",
		"Tasks that ended since the programs were attached.", nil, nil)
	descOOMKills = prometheus.NewDesc("nodeprobe_bpf_oom_kills_total",
		"Victims of the OOM killer since the programs were attached.", nil, nil)
	descReclaims = prometheus.NewDesc("nodeprobe_bpf_reclaims_total",
		"Times that a task had to free memory itself: the node's (direct) or its cgroup's.", []string{"scope"}, nil)
	descReclaimStall = prometheus.NewDesc("nodeprobe_bpf_reclaim_stall_seconds_total",
		"Time that tasks spent freeing memory themselves.", []string{"scope"}, nil)
	descBlockErrors = prometheus.NewDesc("nodeprobe_bpf_block_errors_total",
		"Block I/O requests that ended in an error.", nil, nil)
	descTicks = prometheus.NewDesc("nodeprobe_bpf_ticks_total",
		"Times that the timer in the kernel compared levels with thresholds.", nil, nil)
	descTickTime = prometheus.NewDesc("nodeprobe_bpf_tick_seconds_total",
		"Time that the timer in the kernel ran.", nil, nil)
	descLost = prometheus.NewDesc("nodeprobe_bpf_lost_events_total",
		"Events that found the ring buffer full.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Sensor) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descAttached, descRuns, descRunTime, descTasks, descForks, descExits, descOOMKills,
		descReclaims, descReclaimStall, descBlockErrors, descLost, descTicks, descTickTime,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. A counter whose programs are not
// attached is absent.
func (s *Sensor) Collect(ch chan<- prometheus.Metric) {
	for _, h := range s.Hooks() {
		attached := 0.0
		if h.Attached {
			attached = 1
		}
		ch <- prometheus.MustNewConstMetric(descAttached, prometheus.GaugeValue, attached, h.Signal.String(), h.Name)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	for _, p := range s.Stats() {
		counter(descRuns, float64(p.Runs), p.Name)
		counter(descRunTime, p.RunTime.Seconds(), p.Name)
	}
	c := s.Counters()
	if c.Has.Has(Tasks) {
		ch <- prometheus.MustNewConstMetric(descTasks, prometheus.GaugeValue, float64(c.Tasks))
		counter(descForks, float64(c.Forks))
		counter(descExits, float64(c.Exits))
	}
	if c.Has.Has(OOM) {
		counter(descOOMKills, float64(c.OOMKills))
	}
	if c.Has.Has(OOM) || c.Has.Has(Pressure) {
		counter(descLost, float64(c.Lost))
	}
	if c.Has.Has(Reclaim) {
		counter(descReclaims, float64(c.DirectReclaims), "direct")
		counter(descReclaimStall, c.DirectReclaimStall.Seconds(), "direct")
		counter(descReclaims, float64(c.CgroupReclaims), "cgroup")
		counter(descReclaimStall, c.CgroupReclaimStall.Seconds(), "cgroup")
	}
	if c.Has.Has(BlockIO) {
		counter(descBlockErrors, float64(c.BlockErrors))
	}
	if c.Has.Has(Pressure) {
		var l Levels
		s.Levels(&l)
		counter(descTicks, float64(l.Ticks))
		counter(descTickTime, l.TickTime.Seconds())
	}
}

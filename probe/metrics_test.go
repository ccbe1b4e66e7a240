package probe

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// scrape returns the lines that a scrape of reg yields, without the comments and
// without what depends on the clock, whose names hold prefix.
func scrape(t *testing.T, reg *prometheus.Registry, prefix string) []string {
	t.Helper()
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	if answer.Code != 200 {
		t.Fatalf("scrape: %s", answer.Body)
	}
	var lines []string
	for line := range strings.Lines(answer.Body.String()) {
		if strings.HasPrefix(line, prefix) && !strings.Contains(line, "_duration_seconds") && !strings.Contains(line, "_timestamp_seconds") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func (n node) samplerWithMetrics(t *testing.T) (*Sampler, *prometheus.Registry) {
	t.Helper()
	// Pedantic: what is collected must be what was described.
	reg := prometheus.NewPedanticRegistry()
	return n.sampler(t, func(c *Config) { c.Registerer = reg }), reg
}

func TestMetrics(t *testing.T) {
	s, reg := fullMachine.with(machine{"proc/pressure/cpu": "", "proc/pressure/io": ""}).boot(t).samplerWithMetrics(t)
	if lines := scrape(t, reg, "nodeprobe_signal"); len(lines) > 0 {
		t.Errorf("before the first sample: %q", lines)
	}
	s.Sample()
	s.Sample()
	info := &s.current.Machine
	want := `nodeprobe_capacity_cpus 4
nodeprobe_capacity_ephemeral_storage_bytes 4.096e+06
nodeprobe_capacity_hugepages_bytes{page_size_bytes="2097152"} 1.073741824e+09
nodeprobe_filesystem_readonly{filesystem="imagefs"} 0
nodeprobe_filesystem_readonly{filesystem="nodefs"} 0
nodeprobe_machine_info{architecture="` + info.Architecture + `",boot_id="ed1304b0-28d0-44a5-98a2-98159614029c",kernel_version="` + info.KernelVersion + `",machine_id="3d1219c7c4c5404aaa1f6d2a48adfda4",os_image="Debian GNU/Linux 12 (bookworm)",system_uuid="4c4c4544-0042-3510-8053-b4c04f564d31"} 1
nodeprobe_memory_available_bytes 5.36870912e+09
nodeprobe_memory_free_bytes 1.073741824e+09
nodeprobe_memory_meminfo_bytes{field="MemAvailable"} 5.36870912e+09
nodeprobe_memory_meminfo_bytes{field="MemFree"} 1.073741824e+09
nodeprobe_memory_meminfo_bytes{field="MemTotal"} 8.589934592e+09
nodeprobe_memory_swap_bytes{field="SwapFree"} 1.610612736e+09
nodeprobe_memory_swap_bytes{field="SwapTotal"} 2.147483648e+09
nodeprobe_memory_swap_free_bytes 1.610612736e+09
nodeprobe_memory_swap_total_bytes 2.147483648e+09
nodeprobe_memory_total_bytes 8.589934592e+09
nodeprobe_memory_working_set_bytes 4.294967296e+09
nodeprobe_oom_kills_total 184
nodeprobe_pressure_stall_ratio{kind="full",resource="memory",window="10s"} 0
nodeprobe_pressure_stall_ratio{kind="full",resource="memory",window="300s"} 0.0235
nodeprobe_pressure_stall_ratio{kind="full",resource="memory",window="60s"} 0.0001
nodeprobe_pressure_stall_ratio{kind="some",resource="memory",window="10s"} 0.015
nodeprobe_pressure_stall_ratio{kind="some",resource="memory",window="300s"} 1
nodeprobe_pressure_stall_ratio{kind="some",resource="memory",window="60s"} 0.0007
nodeprobe_pressure_stall_seconds_total{kind="full",resource="memory"} 0.104735
nodeprobe_pressure_stall_seconds_total{kind="some",resource="memory"} 513.68295
nodeprobe_sampler_read_errors_total{source="cpus"} 0
nodeprobe_sampler_read_errors_total{source="hugepages"} 0
nodeprobe_sampler_read_errors_total{source="imagefs"} 0
nodeprobe_sampler_read_errors_total{source="loadavg"} 0
nodeprobe_sampler_read_errors_total{source="machine"} 0
nodeprobe_sampler_read_errors_total{source="meminfo"} 0
nodeprobe_sampler_read_errors_total{source="memory_cgroup"} 0
nodeprobe_sampler_read_errors_total{source="mounts"} 0
nodeprobe_sampler_read_errors_total{source="nodefs"} 0
nodeprobe_sampler_read_errors_total{source="pods_cgroup"} 0
nodeprobe_sampler_read_errors_total{source="pressure_cpu"} 2
nodeprobe_sampler_read_errors_total{source="pressure_io"} 2
nodeprobe_sampler_read_errors_total{source="pressure_memory"} 0
nodeprobe_sampler_read_errors_total{source="task_limit"} 0
nodeprobe_sampler_read_errors_total{source="vmstat"} 0
nodeprobe_sampler_wakeups_total{cause="cgroup"} 0
nodeprobe_sampler_wakeups_total{cause="disk"} 0
nodeprobe_sampler_wakeups_total{cause="event"} 0
nodeprobe_sampler_wakeups_total{cause="limits"} 0
nodeprobe_sampler_wakeups_total{cause="mounts"} 0
nodeprobe_sampler_wakeups_total{cause="near"} 0
nodeprobe_sampler_wakeups_total{cause="reload"} 0
nodeprobe_sampler_wakeups_total{cause="stall"} 0
nodeprobe_sampler_wakeups_total{cause="tick"} 0
nodeprobe_sampler_wakeups_total{cause="view"} 0
nodeprobe_signal_available_bytes{signal="allocatableMemory.available"} 4.294967296e+09
nodeprobe_signal_available_bytes{signal="imagefs.available"} 1.024e+06
nodeprobe_signal_available_bytes{signal="memory.available"} 4.294967296e+09
nodeprobe_signal_available_bytes{signal="nodefs.available"} 1.024e+06
nodeprobe_signal_available_inodes{signal="imagefs.inodesFree"} 500
nodeprobe_signal_available_inodes{signal="nodefs.inodesFree"} 500
nodeprobe_signal_available_tasks{signal="pid.available"} 50
nodeprobe_signal_capacity_bytes{signal="allocatableMemory.available"} 7.516192768e+09
nodeprobe_signal_capacity_bytes{signal="imagefs.available"} 4.096e+06
nodeprobe_signal_capacity_bytes{signal="memory.available"} 8.589934592e+09
nodeprobe_signal_capacity_bytes{signal="nodefs.available"} 4.096e+06
nodeprobe_signal_capacity_inodes{signal="imagefs.inodesFree"} 600
nodeprobe_signal_capacity_inodes{signal="nodefs.inodesFree"} 600
nodeprobe_signal_capacity_tasks{signal="pid.available"} 127000
nodeprobe_tasks_existing 126950
nodeprobe_tasks_running 3`
	if d := cmp.Diff(strings.Split(want, "\n"), scrape(t, reg, "nodeprobe_")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// A gauge of 0 where nothing could be read would set off every alert.
func TestMetricsOfWhatIsAbsentAreAbsent(t *testing.T) {
	s, reg := machine{}.boot(t).samplerWithMetrics(t)
	s.Sample()
	for _, prefix := range []string{
		"nodeprobe_memory", "nodeprobe_oom", "nodeprobe_pressure", "nodeprobe_tasks", "nodeprobe_capacity_cpus",
		"nodeprobe_capacity_hugepages", `nodeprobe_signal_available_bytes{signal="memory`, "nodeprobe_signal_available_tasks",
	} {
		if lines := scrape(t, reg, prefix); len(lines) > 0 {
			t.Errorf("%q", lines)
		}
	}
}

// A scrape must not fail, let alone crash the daemon, because firmware holds
// bytes that are no text.
func TestMetricsOfBrokenText(t *testing.T) {
	const bad = "\xff\xfe bad \x80\n"
	s, reg := fullMachine.with(machine{
		"etc/os-release": "PRETTY_NAME=" + bad, "etc/machine-id": bad, "sys/class/dmi/id/product_uuid": bad,
		"proc/sys/kernel/random/boot_id": bad,
	}).boot(t).samplerWithMetrics(t)
	s.Sample()
	if lines := scrape(t, reg, "nodeprobe_machine_info"); len(lines) != 1 {
		t.Errorf("%q", lines)
	}
}

func TestMetricsRegisterOnce(t *testing.T) {
	n := fullMachine.boot(t)
	_, reg := n.samplerWithMetrics(t)
	cfg := n.config()
	cfg.Registerer = reg
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "register metrics: ") {
		t.Errorf("error %v", err)
	}
}

func TestMetricsLint(t *testing.T) {
	s, reg := fullMachine.boot(t).samplerWithMetrics(t)
	s.Sample()
	families, err := reg.Gather()
	probetest.Must(t, err)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	probetest.Must(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

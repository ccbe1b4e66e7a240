package e2e

import (
	"fmt"
	"testing"
)

// usage is a machine of whose memory and tasks the test decides how much is in use:
// it need not hold as much memory as there is to show a shortage. And nothing is
// killed there but by the test's word, whatever other tests do.
type usage struct{ hardware }

// newUsage makes a machine with next to no memory and tasks in use.
func newUsage(t *testing.T) usage {
	t.Helper()
	u := usage{hardware{t, t.TempDir(), t.TempDir()}}
	u.link("/proc", u.procfs, "loadavg", "vmstat", "meminfo")
	u.link("/sys", u.sysfs, "fs")
	u.write(u.sysfs, "fs/cgroup/memory.stat", "") // is looked for
	u.copyMeminfo()
	u.memory(1 << 20)
	u.tasks(100)
	u.killed(0)
	return u
}

// flags are those that lead nodeprobe to the machine.
func (u usage) flags() []string {
	return []string{"--path.procfs", u.procfs, "--path.sysfs", u.sysfs}
}

func (u usage) memory(bytes int64) {
	u.t.Helper()
	u.meminfo(map[string]int64{"AnonPages": bytes, "Cached": 0, "Buffers": 0, "SwapCached": 0, "Inactive(file)": 0})
}

func (u usage) tasks(n int) {
	u.t.Helper()
	u.write(u.procfs, "loadavg", fmt.Sprintf("0.00 0.00 0.00 1/%020d 1\n", n))
}

// killed has the kernel say how many processes it has killed for lack of memory.
func (u usage) killed(n int) {
	u.t.Helper()
	u.write(u.procfs, "vmstat", fmt.Sprintf("oom_kill %020d\n", n))
}

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
	"github.com/nodeprobe/nodeprobe/test/harness/wait"
)

// usage is a machine whose files in /proc and /sys are the test's own where it needs
// that, and links to the real ones elsewhere. The test plugs and unplugs, and decides
// how much memory and how many tasks are in use: it need not hold as much memory as
// there is to show a shortage. And nothing is killed there but by the test's word.
type usage struct {
	t             *testing.T
	procfs, sysfs string
}

// newUsage makes a machine of two CPUs, 64 GiB and eight huge pages, with next to no
// memory and tasks in use.
func newUsage(t *testing.T) usage {
	t.Helper()
	u := usage{t, t.TempDir(), t.TempDir()}
	u.link("/proc", u.procfs, "loadavg", "vmstat", "meminfo")
	u.link("/sys", u.sysfs, "fs", "devices", "kernel")
	u.write(u.sysfs, "fs/cgroup/memory.stat", "") // is looked for
	u.write(u.procfs, "meminfo", string(must.Get(os.ReadFile("/proc/meminfo"))(t)))
	u.plug("0-1", 64<<30, 0, 8)
	u.memory(1 << 20)
	u.tasks(100)
	u.killed(0)
	return u
}

func (u usage) link(from, to string, except ...string) {
	u.t.Helper()
	for _, e := range must.Get(os.ReadDir(from))(u.t) {
		if !slices.Contains(except, e.Name()) {
			must.OK(u.t, os.Symlink(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())))
		}
	}
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

// write changes a file in place, as the kernel's files do: a text of the same length
// at once, and it is never empty.
func (u usage) write(root, name, text string) {
	u.t.Helper()
	path := filepath.Join(root, name)
	must.OK(u.t, os.MkdirAll(filepath.Dir(path), 0o755))
	f := must.Get(os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600))(u.t)
	defer f.Close()
	must.Get(f.WriteString(text))(u.t)
	must.OK(u.t, f.Truncate(int64(len(text))))
}

func (u usage) plug(cpus string, memory, swap, hugePages int64) {
	u.t.Helper()
	u.write(u.sysfs, "devices/system/cpu/online", cpus+"\n")
	u.write(u.sysfs, "kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", fmt.Sprintln(hugePages))
	u.meminfo(map[string]int64{"MemTotal": memory, "SwapTotal": swap, "SwapFree": swap})
}

// meminfo changes figures of /proc/meminfo, which are in bytes.
func (u usage) meminfo(figures map[string]int64) {
	u.t.Helper()
	meminfo := must.Get(os.ReadFile(filepath.Join(u.procfs, "meminfo")))(u.t)
	for name, value := range figures {
		line := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + `:.*$`)
		meminfo = line.ReplaceAll(meminfo, fmt.Appendf(nil, "%s: %15d kB", name, value>>10))
	}
	u.write(u.procfs, "meminfo", string(meminfo))
}

// CPUs, memory, swap and huge pages that come and go, and a filesystem that grows,
// are on the Node without a restart. A kubelet needs one.
func TestHotPlug(t *testing.T) {
	t.Parallel()
	need.Root(t)
	const gi, mi = 1 << 30, 1 << 20
	u := newUsage(t)
	dir := t.TempDir()
	must.OK(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"))
	t.Cleanup(func() { // after nodeprobe has ended
		must.Note(t, unix.Unmount(dir, unix.MNT_DETACH))
	})
	n := newNode(t, controlplane.StartForTest(t), agent.Config{
		"rootDirectory": dir, "systemReserved": map[string]string{"cpu": "500m", "memory": "1Gi"},
	})
	n.Spec.Args = u.flags()
	n.StartReady()

	check := func(when string, want ...int64) {
		t.Helper()
		// The rarest of them are read once a minute.
		wait.Until(t, 2*stage.Patience, "the node has what is there "+when, func() error {
			if got := capacityOf(n.MustGet()); !slices.Equal(got, want) {
				return fmt.Errorf("it has %v, want %v", got, want)
			}
			return nil
		})
	}
	check("at first", 2000, 64*gi, 0, 16*mi, 64*mi, 1500, 63*gi-16*mi)
	u.plug("0,2-4", 16*gi, 2*gi, 0)
	must.OK(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=128m"))
	check("plugged and unplugged", 4000, 16*gi, 2*gi, 0, 128*mi, 3500, 15*gi)
}

// capacityOf returns thousandths of CPUs, and bytes of memory, swap, huge pages and
// disk; then CPUs and memory that are allocatable.
func capacityOf(node *corev1.Node) []int64 {
	s, swap := &node.Status, int64(0)
	if of := s.NodeInfo.Swap; of != nil && of.Capacity != nil {
		swap = *of.Capacity
	}
	huge := s.Capacity["hugepages-2Mi"]
	return []int64{
		s.Capacity.Cpu().MilliValue(), s.Capacity.Memory().Value(), swap, huge.Value(), s.Capacity.StorageEphemeral().Value(),
		s.Allocatable.Cpu().MilliValue(), s.Allocatable.Memory().Value(),
	}
}

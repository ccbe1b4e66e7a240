package pressure

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// wantNoneLeft checks that nothing of ours is mounted, or a cgroup.
func wantNoneLeft(t *testing.T, pid int) {
	t.Helper()
	if left := leftovers(t, pid); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func leftovers(t *testing.T, pid int) []string {
	t.Helper()
	var left []string
	for _, depth := range []string{"", "*/"} {
		found := must.Get(filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/%snodeprobe-test-%d-*", depth, pid)))(t)
		left = append(left, found...)
	}
	return left
}

func wantUnmounted(t *testing.T, f *Filesystem) {
	t.Helper()
	mounts := must.Get(os.ReadFile("/proc/self/mountinfo"))(t)
	if bytes.Contains(mounts, []byte(f.Dir)) {
		t.Errorf("%s is still mounted", f.Dir)
	}
	if _, err := os.Stat(filepath.Dir(f.Dir)); !os.IsNotExist(err) {
		t.Errorf("directory of the filesystem: %v", err)
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, loop := range loops {
		if file, err := os.ReadFile(loop); err == nil && bytes.HasPrefix(file, []byte(filepath.Dir(f.Dir))) {
			t.Errorf("%s still is %s", loop, file)
		}
	}
}

func TestMemory(t *testing.T) {
	need.Root(t)
	const mebibytes = 300
	p := must.Get(Memory(mebibytes))(t)
	defer p.Release()
	// The child's and the cgroup's figures, not the machine's: others use and
	// give back memory at the same time.
	status := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PIDs()[0])))(t)
	var rss int
	for line := range bytes.Lines(status) {
		_, _ = fmt.Sscanf(string(line), "RssAnon: %d kB", &rss)
	}
	if rss < mebibytes<<10 {
		t.Errorf("child holds %d KiB, want %d", rss, mebibytes<<10)
	}
	if got := cgroupUsage(t, p.Cgroup); got < mebibytes<<20 || got > mebibytes<<20+runtimeRoom {
		t.Errorf("cgroup uses %d MiB, want about %d", got>>20, mebibytes)
	}
	for range 2 {
		must.Note(t, p.Release())
	}
	wantNoneLeft(t, os.Getpid())
}

func cgroupUsage(t *testing.T, dir string) (usage int64) {
	t.Helper()
	for _, name := range []string{"memory.usage_in_bytes", "memory.current"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if os.IsNotExist(err) {
			continue
		}
		must.OK(t, err)
		must.Get(fmt.Sscan(string(data), &usage))(t)
		return usage
	}
	t.Fatalf("%s has no usage", dir)
	return 0
}

func TestTasks(t *testing.T) {
	need.Root(t)
	const n = 5000 // More than one child.
	_, before, err := systemTasks()
	must.OK(t, err)
	p := must.Get(Tasks(n))(t)
	defer p.Release()
	_, held, err := systemTasks()
	must.OK(t, err)
	// Others start and end tasks at the same time.
	if grown := held - before; grown < n-500 || grown > n+500 {
		t.Errorf("%d more tasks, want about %d", grown, n)
	}
	for range 2 {
		must.Note(t, p.Release())
	}
	if _, after, err := systemTasks(); err != nil || held-after < n-500 {
		t.Errorf("%d fewer tasks after release (%v), want about %d", held-after, err, n)
	}
	wantNoneLeft(t, os.Getpid())
}

func TestContainers(t *testing.T) {
	need.Root(t)
	const n = 3
	p := must.Get(Containers(n))(t)
	defer p.Release()
	procs := must.Get(filepath.Glob(filepath.Join(p.Cgroup, "*", "cgroup.procs")))(t)
	for _, file := range procs {
		pid := must.Get(os.ReadFile(file))(t)
		comm, err := []byte(nil), error(nil)
		for deadline := time.Now().Add(time.Minute); err == nil && string(comm) != "cat\n" && time.Now().Before(deadline); {
			comm, err = os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/comm")
		}
		if err != nil || string(comm) != "cat\n" {
			t.Errorf("%s has %q: %s, %v", file, pid, comm, err)
		}
	}
	if len(procs) != n {
		t.Errorf("%d cgroups, want %d", len(procs), n)
	}
	must.Note(t, p.Release())
	wantNoneLeft(t, os.Getpid())
}

func TestDisk(t *testing.T) {
	f := DiskForTest(t, 64)
	available := func() int64 {
		return must.Get(f.Available())(t)
	}
	empty := available()
	if empty < 40<<20 {
		t.Errorf("%d MiB available at first", empty>>20)
	}
	for _, want := range []int64{10 << 20, 5 << 20, 0, 20 << 20} {
		must.OK(t, f.Fill(want))
		if got := available(); got > want+64<<10 || got < want-64<<10 {
			t.Errorf("%d bytes available, want %d", got, want)
		}
	}
	for _, want := range []int64{100, 50, 300} {
		must.OK(t, f.TakeInodes(want))
		if got, err := f.InodesFree(); err != nil || got != want {
			t.Errorf("%d inodes free (%v), want %d", got, err, want)
		}
	}
	must.OK(t, f.Empty())
	if got := available(); got < empty-1<<20 {
		t.Errorf("%d bytes available when emptied, %d at first", got, empty)
	}
	for range 2 {
		must.Note(t, f.Close())
	}
	wantUnmounted(t, f)
}

func TestRefusesTooMuch(t *testing.T) {
	if p, err := Memory(1 << 30); err == nil {
		p.Release()
		t.Error("Memory of a PiB: no error")
	}
	if p, err := Tasks(1 << 30); err == nil {
		p.Release()
		t.Error("2^30 Tasks: no error")
	}
}

// A limit below what the child needs: its start fails, and nothing stays.
func TestFailureLeavesNothing(t *testing.T) {
	need.Root(t)
	p, err := inCgroup("memory", 1<<20, []role{{Memory: 512 << 20}})
	if err == nil {
		p.Release()
		t.Error("512 MiB in a cgroup of one: no error")
	}
	wantNoneLeft(t, os.Getpid())
}

// The process that made the pressure is killed, as by an impatient go test.
func TestKilledParentLeavesNothing(t *testing.T) {
	need.Root(t)
	need.Command(t, "mkfs.ext4", "e2fsprogs")
	if os.Getenv("NODEPROBE_PRESSURE_VICTIM") == "1" {
		must.Get(Memory(32))(t)
		f := must.Get(Disk(16))(t)
		fmt.Println("victim", f.Dir)
		select {}
	}
	victim := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
	victim.Env = append(os.Environ(), "NODEPROBE_PRESSURE_VICTIM=1")
	stdout := must.Get(victim.StdoutPipe())(t)
	must.OK(t, victim.Start())
	var dir string
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "victim "); ok {
			dir = rest
			break
		}
	}
	must.Note(t, victim.Process.Kill())
	_ = victim.Wait() // It was killed.
	if dir == "" {
		t.Fatal("victim did not get as far")
	}
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		if _, err := os.Stat(filepath.Dir(dir)); os.IsNotExist(err) && len(leftovers(t, victim.Process.Pid)) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	wantNoneLeft(t, victim.Process.Pid)
	wantUnmounted(t, &Filesystem{Dir: dir})
}

func TestCgroupRoot(t *testing.T) {
	const (
		v1     = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
		joined = "36 31 0:33 / /sys/fs/cgroup/cpu,memory rw - cgroup cgroup rw,cpu,memory\n"
		v2     = "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
	)
	for _, test := range []struct {
		mountinfo string
		inV2      bool
		want      string
		wantV2    bool
	}{
		{v1 + v2, false, "/sys/fs/cgroup/memory", false},
		{v2 + joined, true, "/sys/fs/cgroup/cpu,memory", false},
		{v2, true, "/sys/fs/cgroup", true},
		{v2, false, "", false},
		{"nonsense\n", true, "", false},
	} {
		root, isV2, err := cgroupRoot([]byte(test.mountinfo), "memory", func(string) bool { return test.inV2 })
		if root != test.want || isV2 != test.wantV2 || (err != nil) != (test.want == "") {
			t.Errorf("%q: got %q, %v, %v", test.mountinfo, root, isV2, err)
		}
	}
}

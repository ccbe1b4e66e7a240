package notify

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/cgroup"
	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

	"golang.org/x/sys/unix"
)

func TestSumEvents(t *testing.T) {
	const events = "low 1\nhigh 20\nmax 300\noom 4000\noom_kill 50000\noom_group_kill 600000\nsock_throttled 7000000\n"
	for _, test := range []struct {
		text, prefix string
		want         int64
		err          string
	}{
		{events, "", 7654321, ""},
		{events, "oom", 654000, ""},
		{"", "", 0, ""}, // what a file of no events may be
		{"low 1\noom\n", "oom", 0, `line "oom\n": strconv.ParseUint: parsing "": invalid syntax`},
		{"low 1\noom -1\n", "oom", 0, `line "oom -1\n": strconv.ParseUint: parsing "-1": invalid syntax`},
		{"low 1\noom 12", "oom", 0, `line "oom 12": cut off before its end`},
		{"low x\noom 1\n", "oom", 1, ""}, // not wanted, not judged
	} {
		got, err := sumEvents(test.text, test.prefix)
		if probetest.ErrText(err) != test.err || got != test.want {
			t.Errorf("sumEvents(%q, %q): got %d, %v; want %d, %s", test.text, test.prefix, got, err, test.want, test.err)
		}
	}
}

func FuzzSumEvents(f *testing.F) {
	f.Add("low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n", "oom")
	f.Fuzz(func(t *testing.T, text, prefix string) {
		sum, err := sumEvents(text, prefix)
		if err != nil && sum != 0 {
			t.Errorf("both %d and %v", sum, err)
		}
	})
}

// Ordinary files stand for memory.events: they are found and read, but poll
// never reports them. See TestNotifierCgroupFile for what kernfs does.
func TestCgroupSourceFinds(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		probetest.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		probetest.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	s := &cgroupSource{cgroupfs: root, file: "memory.events", only: "oom"}
	opens := func(want string) int {
		t.Helper()
		fd, path, err := s.open()
		if err != nil || path != filepath.Join(root, want) {
			t.Fatalf("open: got %s, %v; want %s", path, err, want)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	fails := func(want error) {
		t.Helper()
		if _, _, err := s.open(); !errors.Is(err, want) || s.remedy(err) == "" {
			t.Errorf("open: got %v, want %v with a remedy", err, want)
		}
	}
	fails(errNotV2)
	write("memory.stat", "")
	fails(errNoPods)
	probetest.Must(t, os.Mkdir(filepath.Join(root, "kubepods"), 0o700))
	fails(fs.ErrNotExist)

	write("kubepods/memory.events", "max 1\noom 1\n")
	fd := opens("kubepods/memory.events")
	hears := func(text string, want bool) {
		t.Helper()
		write("kubepods/memory.events", text)
		if worth, err := s.heard(fd, unix.POLLPRI); worth != want || err != nil {
			t.Errorf("%q: got %t, %v; want %t", text, worth, err, want)
		}
	}
	hears("max 2\noom 1\n", false)
	hears("max 2\noom 2\n", true)
	hears("max 2\noom 2\n", false)
	if s.stale(fd) {
		t.Error("stale, but nothing changed")
	}

	// The cgroup was removed and made again.
	probetest.Must(t, os.RemoveAll(filepath.Join(root, "kubepods")))
	if !s.stale(fd) {
		t.Error("not stale, but the cgroup is gone")
	}
	write("kubepods/memory.events", "oom 0\n")
	if !s.stale(fd) {
		t.Error("not stale, but the cgroup is another one")
	}

	// A kubelet with the systemd driver came.
	fd = opens("kubepods/memory.events")
	write("kubepods.slice/memory.events", "oom 0\n")
	if !s.stale(fd) {
		t.Error("not stale, but pods live elsewhere")
	}
	opens("kubepods.slice/memory.events")
}

// TestNotifierPods has the OOM killer kill in a pods' cgroup for real.
func TestNotifierPods(t *testing.T) {
	dir, version := cgroup.Memory("/sys/fs/cgroup")
	if version != cgroup.V2 {
		t.Skip("the machine's memory controller is not that of cgroup v2; see TestNotifierCgroupFile")
	}
	if cgroup.Pods(dir) != "" {
		probetest.Lacking(t, "the machine has pods already")
	}
	e := listen(t, Config{Procfs: "/proc", Sysfs: "/sys", Stalls: []StallTrigger{}})
	if s := e.source("pods_memory_events"); !errors.Is(s.Err, errNoPods) {
		t.Errorf("%+v: want %v", s, errNoPods)
	}

	// The limit of all pods together.
	pods := probetest.NewCgroup(t, "kubepods")
	pods.Write(t, "cgroup.subtree_control", "+memory")
	pod := probetest.NewCgroup(t, "kubepods/pod1")
	e.n.Refresh()
	for e.source("pods_memory_events").Err != nil || e.source("pods_memory_events_local").Err != nil {
		time.Sleep(time.Millisecond)
	}
	pods.Write(t, "memory.max", "16M")
	stop := pod.Start(t, "fill")
	e.expect(Cgroup, func() bool { return true })
	stop()

	// The limit of one pod, which that of all pods does not tell of.
	pods.Write(t, "memory.max", "max")
	pod.Write(t, "memory.max", "16M")
	kills := func() string {
		b, err := os.ReadFile(filepath.Join(pod.Dir, "memory.events"))
		if err != nil {
			t.Error(err)
		}
		_, count, _ := strings.Cut(string(b), "oom_kill ")
		return count
	}
	before := kills()
	pod.Start(t, "fill")
	e.expect(Cgroup, func() bool { return kills() != before })
}

// TestNotifierCgroupFile has kernfs report a change of cgroup.events, as it
// reports one of memory.events: any machine with a cgroup v2 hierarchy has that
// file, whoever has the memory controller.
func TestNotifierCgroupFile(t *testing.T) {
	if os.Geteuid() != 0 {
		probetest.Lacking(t, "only root makes cgroups")
	}
	var unified string
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err == nil {
			unified = dir
		}
	}
	if unified == "" {
		t.Skip("the machine has no cgroup v2 hierarchy")
	}
	group := filepath.Join(unified, "nodeprobe-test-events")
	makeGroup := func() {
		t.Helper()
		if err := os.Mkdir(group, 0o755); err != nil {
			probetest.Lacking(t, "make cgroup: %v", err)
		}
	}
	makeGroup()
	t.Cleanup(func() { os.Remove(group) })

	sysfs := t.TempDir()
	pods := filepath.Join(sysfs, "fs/cgroup/kubepods")
	e := listen(t, Config{Procfs: "/proc", Sysfs: sysfs, Stalls: []StallTrigger{}})
	refresh := func(active bool) {
		t.Helper()
		e.n.Refresh()
		for e.source("pods_memory_events_local").Active != active {
			time.Sleep(time.Millisecond)
		}
	}
	refresh(false)
	if err := errors.Join(
		os.MkdirAll(pods, 0o700),
		os.WriteFile(filepath.Join(sysfs, "fs/cgroup/memory.stat"), nil, 0o600),
		os.Symlink(filepath.Join(group, "cgroup.events"), filepath.Join(pods, "memory.events.local")),
	); err != nil {
		t.Fatal(err)
	}
	refresh(true)

	// Twice, as the first report must not be the last.
	populate := func() {
		t.Helper()
		child := exec.Command("sleep", "600")
		probetest.Must(t, child.Start())
		pid := strconv.Itoa(child.Process.Pid)
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(pid), 0); err != nil {
			t.Error(err)
		}
		e.expect(Cgroup, func() bool { return true })
		child.Process.Kill()
		child.Wait()
		e.expect(Cgroup, func() bool { return true })
	}
	populate()

	// The cgroup goes, and comes again.
	probetest.Must(t, os.Remove(group))
	refresh(false)
	makeGroup()
	refresh(true)
	populate()
}

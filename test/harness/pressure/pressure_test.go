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

func TestNoMemoryLeft(t *testing.T) {
	total, available, err := parseMemory([]byte("MemTotal:  1024 kB\nMemAvailable:  0 kB\n"))
	if err != nil || total != 1<<20 || available != 0 {
		t.Errorf("got %d of %d, %v", available, total, err)
	}
	if _, _, err := parseMemory([]byte("MemTotal:  1024 kB\n")); err == nil {
		t.Error("no error though MemAvailable is missing")
	}
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

func TestRefusesTooMuch(t *testing.T) {
	if _, err := MemoryRamp(1 << 50); err == nil {
		t.Error("a PiB of memory: no error")
	}
	tasks := must.Get(TaskRamp())(t)
	defer tasks.Close()
	if err := tasks.Take(9000); err == nil {
		t.Error("9000 tasks: no error")
	}
}

// The process that made the pressure is killed, as by an impatient go test.
func TestKilledParentLeavesNothing(t *testing.T) {
	need.Root(t)
	need.Command(t, "mkfs.ext4", "e2fsprogs")
	if os.Getenv("NODEPROBE_PRESSURE_VICTIM") == "1" {
		must.Get(inCgroup("memory", 32<<20+runtimeRoom, []role{{Memory: 32 << 20}}))(t)
		f := DiskIn(t, Tmpfs(t, 32), 16)
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
		if _, err := os.Stat(filepath.Dir(filepath.Dir(dir))); os.IsNotExist(err) && len(leftovers(t, victim.Process.Pid)) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	wantNoneLeft(t, victim.Process.Pid)
	wantUnmounted(t, &Filesystem{Dir: dir})
	if _, err := os.Stat(filepath.Dir(filepath.Dir(dir))); !os.IsNotExist(err) {
		t.Errorf("directory of the filesystem in memory: %v", err)
	}
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

// A storm is refused where it would be no storm, and the end of a machine.
func TestNoStorm(t *testing.T) {
	need.Root(t)
	if why := must.Get(noStorm(Tmpfs(t, 1)))(t); why == "" {
		t.Error("a storm whose readers read from memory is not refused")
	}
	if limit := must.Get(ownMemoryLimit())(t); limit < 64<<20 {
		t.Errorf("this process may have %d bytes of memory", limit)
	}
}

package probe_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"
	"github.com/nodeprobe/nodeprobe/probe/mount"

	"golang.org/x/sys/unix"
)

// inCrowd says that this process is the one that reportCrowd started.
const inCrowd = "NODEPROBE_CROWD"

// reportCrowd shows what a sample costs on a machine of many mounts and block devices,
// beside the same machine without them. The mounts are in a namespace whose process 1
// reads them, and go when that ends.
func reportCrowd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("without the cases of many mounts and block devices: not root")
		return
	}
	self, err := os.Executable()
	probetest.Must(t, err)
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--mount-proc", self, "-test.v", "-test.cpu=1", "-test.run=^TestCrowd$")
	cmd.Env = append(os.Environ(), inCrowd+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("in a namespace: %v\n%s", err, out)
	}
	fmt.Printf("%s", out)
}

// TestCrowd is not a test but the process in the namespace.
func TestCrowd(t *testing.T) {
	if os.Getenv(inCrowd) == "" {
		return
	}
	const mounts, devices = 500, 200
	without := measureCrowd(t)
	addMounts(t, mounts)
	with := measureCrowd(t)
	fmt.Printf("RESULT sample_observe_mounts_ratio=%.2f x budget=1.3 peer=without:%.1fus\n", with.sample/without.sample, without.sample)
	fmt.Printf("RESULT mount_find=%.0f us peer=without:%.0fus\n", with.find, without.find)
	addDevices(t, devices)
	both := measureCrowd(t)
	fmt.Printf("RESULT sample_observe_devices_ratio=%.2f x budget=1.3 peer=without:%.1fus\n", both.sample/with.sample, with.sample)
}

// crowdCost has medians in microseconds.
type crowdCost struct{ sample, find float64 }

func measureCrowd(t *testing.T) (c crowdCost) {
	t.Helper()
	const rounds, turn = 101, 100
	sampler, evaluator := newSampler(t), newEvaluator(t)
	us := func(n int, f func()) float64 {
		start := time.Now()
		for range n {
			f()
		}
		return float64(time.Since(start).Nanoseconds()) / 1e3 / float64(n)
	}
	var samples, finds []float64
	for range rounds {
		samples = append(samples, us(turn, func() { evaluator.Observe(sampler.Sample()) }))
		finds = append(finds, us(1, func() {
			if _, err := mount.Find("/proc", "/", nodefsDirectory); err != nil {
				t.Fatal(err)
			}
		}))
	}
	return crowdCost{median(samples), median(finds)}
}

func addMounts(t *testing.T, number int) {
	t.Helper()
	dir := t.TempDir()
	probetest.Must(t, unix.Mount("nodeprobe-bench", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	for i := range number - 1 {
		point := filepath.Join(dir, strconv.Itoa(i))
		probetest.Must(t, os.Mkdir(point, 0o700))
		probetest.Must(t, unix.Mount("nodeprobe-bench", point, "tmpfs", 0, "size=4k"))
	}
}

// addDevices adds loop devices without files. They are the machine's, so they are removed
// one by one, whatever happens.
func addDevices(t *testing.T, number int) {
	t.Helper()
	const first = 5000 // far from those that somebody may use
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no block devices can be added: %v", err)
	}
	t.Cleanup(func() { control.Close() })
	for i := range number {
		if err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_ADD, first+i); err != nil {
			t.Fatalf("add loop device %d: %v", first+i, err)
		}
		t.Cleanup(func() {
			if err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_REMOVE, first+i); err != nil {
				t.Errorf("remove loop device %d: %v", first+i, err)
			}
		})
	}
}

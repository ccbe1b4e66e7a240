package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

const (
	readOnly    = "FilesystemIsReadOnly"
	notReadOnly = "FilesystemIsNotReadOnly"
)

// A filesystem that takes no more writes is reported: an Event, a line of the log, a metric
// and a condition, soon after, though the mount table may show nothing and the kernel
// notifies nobody. And so is the end of it.
func TestReadOnlyFilesystem(t *testing.T) {
	for _, test := range []struct {
		fstype, name string
		fail, mend   func(*pressure.Filesystem) error
		text         string // of the Event
	}{
		{"ext4", "remount", setReadOnly, mendMount, "takes no writes: ro"},
		{"ext4", "error", (*pressure.Filesystem).Break, remake, "takes no writes"},
		{"ext4", "shutdown", (*pressure.Filesystem).Shutdown, remake, "takes no writes"},
		{"ext4", "device lost", (*pressure.Filesystem).Lose, remake, "takes no writes"},
		{"xfs", "remount", setReadOnly, mendMount, "takes no writes: ro"},
		{"xfs", "shutdown", (*pressure.Filesystem).Shutdown, remount, "takes no writes: it gave up after an error"},
		{"xfs", "device lost", (*pressure.Filesystem).Lose, remake, "takes no writes: it gave up after an error"},
		{"btrfs", "remount", setReadOnly, mendMount, "takes no writes: ro"},
		{"btrfs", "device lost", (*pressure.Filesystem).Lose, remake, "takes no writes: ro"},
	} {
		t.Run(test.fstype+" "+test.name, func(t *testing.T) {
			t.Parallel()
			fs := diskOf(t, test.fstype)
			link := filepath.Join(t.TempDir(), "kubelet")
			must.OK(t, os.Symlink(fs.Dir, link))
			n := newNode(t, controlplane.StartForTest(t), agent.Config{"bpf": "auto", "sampleInterval": "10s", "rootDirectory": link})
			a := n.StartReady()
			n.WaitCondition(ourReadonly, corev1.ConditionFalse)
			history := n.Follow()
			time.Sleep(2 * time.Second) // for what follows to be no part of the start
			for _, step := range []struct {
				change         func(*pressure.Filesystem) error
				status         corev1.ConditionStatus
				reason, logged string
				text           string
				metric         float64
			}{
				{test.fail, corev1.ConditionTrue, readOnly, "filesystem is read-only", test.text, 1},
				{test.mend, corev1.ConditionFalse, notReadOnly, "filesystem takes writes again", "takes writes again", 0},
			} {
				began := time.Now()
				must.OK(t, step.change(fs))
				changed := time.Now()
				ctx, stop := context.WithTimeout(t.Context(), stage.Patience)
				defer stop()
				seen := must.Get(history.Wait(ctx, began, nodewatch.Has(ourReadonly, step.status)))(t)
				stage.Until(t, step.reason+" is told of", func() bool { return n.countEvents(step.reason, step.text) == 1 })
				event := time.Now()
				logged := stage.WaitLogged(t, a, step.logged, 0)
				stage.Eventually(t, "the metric", func() error {
					return stage.Metric(a, `nodeprobe_filesystem_readonly{filesystem="nodefs"}`, step.metric)
				})
				took := map[string]time.Duration{"node": seen.At.Sub(changed), "log": logged.Time.Sub(changed), "event seen": event.Sub(changed)}
				t.Logf("%s: after %v", step.status, took)
				if test.name == "shutdown" && step.metric == 1 { // whoever starts now finds it that way
					a.Stop()
					a = n.StartReady()
					if found := stage.WaitLogged(t, a, step.logged, 0); !strings.Contains(found.Line, fs.Type+" of ") || !strings.Contains(found.Line, fs.Dir) {
						t.Errorf("after a restart: %s", found.Line)
					}
				}
				if d := max(took["node"], took["log"]); d > 10*time.Second && step.status == corev1.ConditionTrue { // it is held
					t.Errorf("that took %s", d)
				}
			}
			// Nothing else was said meanwhile.
			var changes []string
			for _, s := range history.All() {
				if status := string(nodewatch.Condition(s.Node, ourReadonly).Status); len(changes) == 0 || changes[len(changes)-1] != status {
					changes = append(changes, status)
				}
			}
			if got := strings.Join(changes, " "); got != "False True False" {
				t.Errorf("ReadonlyFilesystem was %s", got)
			}
		})
	}
}

func setReadOnly(fs *pressure.Filesystem) error { return fs.SetReadOnly(true) }

func mendMount(fs *pressure.Filesystem) error { return fs.SetReadOnly(false) }

func remount(fs *pressure.Filesystem) error { return errors.Join(fs.Unmount(false), fs.Mount()) }

func remake(fs *pressure.Filesystem) error { return errors.Join(fs.Unmount(false), fs.Format()) }

// diskOf makes a filesystem about as small as it may be.
func diskOf(t *testing.T, fstype string) *pressure.Filesystem {
	t.Helper()
	if fstype == "ext4" {
		return pressure.Disk(t, 64)
	}
	return pressure.DiskOf(t, fstype, 320)
}

// A filesystem changes its size, and what of it only root may fill. It is frozen,
// turned read-only, unmounted, while somebody uses it too, and mounted again. DiskPressure
// is what the filesystem says that is there, and changes for no other reason; and no
// descriptor is lost over it.
func TestFilesystemChanges(t *testing.T) {
	for _, command := range []string{"e2fsck", "resize2fs", "tune2fs"} {
		need.Command(t, command, "e2fsprogs")
	}
	for _, fstype := range []string{"ext4", "xfs", "btrfs"} {
		for _, mode := range []string{"auto", "off"} {
			t.Run(fstype+" bpf "+mode, func(t *testing.T) {
				t.Parallel()
				changeFilesystem(t, diskOf(t, fstype), mode)
			})
		}
	}
}

func changeFilesystem(t *testing.T, fs *pressure.Filesystem, mode string) {
	// Below the mount point lies the machine's own filesystem, which is far from this
	// limit. A btrfs cannot be filled to the brim.
	limit := int64(20 << 20)
	if fs.Type == "btrfs" {
		limit = 80 << 20
	}
	n := newNode(t, controlplane.StartForTest(t), agent.Config{
		"bpf": mode, "sampleInterval": "10s", "evictionPressureTransitionPeriod": "0s", "rootDirectory": fs.Dir,
		"evictionHard": agent.Hard(map[string]string{"nodefs.available": fmt.Sprint(limit)}),
	})
	a := n.StartReady()
	n.WaitCondition(corev1.NodeDiskPressure, corev1.ConditionFalse)
	before := descriptors(t, a)
	var user *os.File
	shortage := func() error { return fs.Fill(limit / 2) }
	frozen := func() error { // as for a snapshot of its device
		err := fs.Freeze()
		if err == nil {
			time.Sleep(3 * time.Second)
		}
		return errors.Join(err, fs.Thaw())
	}
	type step struct {
		name   string
		change func() error
		want   string
	}
	steps := []step{
		{"frozen, and filled", func() error { return errors.Join(frozen(), shortage()) }, "True"},
		{"grown", func() error { return fs.Resize(sizes[fs.Type]) }, "False"},
	}
	if fs.Type == "ext4" {
		steps = append(steps,
			step{"most of it reserved", func() error { return fs.Reserve(50) }, "True"},
			step{"none of it reserved", func() error { return fs.Reserve(0) }, "False"})
	}
	steps = append(steps,
		step{"filled again, and used", func() (err error) { user, err = os.Open(fs.Dir); return errors.Join(err, shortage()) }, "True"},
		// Nobody but the user has it then; whatever happens there is nothing to the node.
		step{"unmounted lazily", func() error { return fs.Unmount(true) }, "False"},
		step{"mounted again", func() error { return errors.Join(user.Close(), fs.Mount()) }, "True"},
		step{"unmounted", func() error { return fs.Unmount(false) }, "False"},
		step{"mounted once more", fs.Mount, "True"},
		step{"emptied", fs.Empty, "False"},
		step{"read-only for a while, and filled for good", func() error {
			err := fs.SetReadOnly(true)
			n.WaitCondition(ourReadonly, corev1.ConditionTrue)
			return errors.Join(err, fs.SetReadOnly(false), shortage())
		}, "True"})
	for i, step := range steps {
		began := time.Now()
		if err := step.change(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		// By nodeprobe's log: the API server learns of six changes a minute.
		r := waitChanged(t, a, i)
		if !strings.Contains(r.Line, `"DiskPressure","status":"`+step.want+`"`) {
			t.Errorf("%s: %s", step.name, r.Line)
		}
		t.Logf("%s: DiskPressure is %s after %s", step.name, step.want, r.Time.Sub(began).Round(time.Millisecond))
	}
	n.WaitCondition(corev1.NodeDiskPressure, corev1.ConditionTrue)
	if all := changed(t, a); len(all) != len(steps) {
		t.Errorf("%d changes, of which only %d had a reason: %+v", len(all), len(steps), all)
	}
	if told := n.countEvents(readOnly, "takes no writes"); told != 1 {
		t.Errorf("%d Events of a filesystem that is read-only, which it was once", told)
	}
	stage.Eventually(t, "no more files are open than before", func() error {
		if now := descriptors(t, a); now > before {
			return fmt.Errorf("%d, and %d before", now, before)
		}
		return nil
	})
}

// sizes are what the filesystems of diskOf grow to, in MiB.
var sizes = map[string]int{"ext4": 128, "xfs": 384, "btrfs": 448}

// descriptors counts the files that the agent has open, without its connections, which
// come and go.
func descriptors(t *testing.T, a *agent.Agent) (n int) {
	t.Helper()
	dir := filepath.Join("/proc", strconv.Itoa(a.PID()), "fd")
	for _, e := range must.Get(os.ReadDir(dir))(t) {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && !strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

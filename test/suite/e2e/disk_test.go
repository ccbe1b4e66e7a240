package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

// diskStep is something that happens to a filesystem, and what is true then.
type diskStep struct {
	name   string
	change func() error
	want   string
}

// A filesystem changes its size, and what of it only root may fill. It is
// unmounted, while somebody uses it too, and mounted again. DiskPressure is what
// the filesystem says that is there, and changes for no other reason.
func TestFilesystemChanges(t *testing.T) {
	for _, mode := range []string{"auto", "off"} {
		t.Run("bpf "+mode, func(t *testing.T) {
			t.Parallel()
			for _, command := range []string{"e2fsck", "resize2fs", "tune2fs"} {
				need.Command(t, command, "e2fsprogs")
			}
			fs := pressure.DiskForTest(t, 64)
			// Below the mount point lies the machine's own filesystem, which is
			// far from this limit.
			const limit = 20 << 20
			n := newNode(t, controlplane.StartForTest(t), agent.Config{
				"bpf": mode, "sampleInterval": "10s", "evictionPressureTransitionPeriod": "0s", "rootDirectory": fs.Dir,
				"evictionHard": agent.Hard(map[string]string{"nodefs.available": fmt.Sprint(limit)}),
			})
			a := n.StartReady()
			n.WaitCondition(corev1.NodeDiskPressure, corev1.ConditionFalse)
			changes := 0
			run := func(steps ...diskStep) {
				t.Helper()
				for _, step := range steps {
					began := time.Now()
					if err := step.change(); err != nil {
						t.Fatalf("%s: %v", step.name, err)
					}
					// By nodeprobe's log: the API server learns of six changes a minute.
					r := waitChanged(t, a, changes)
					if changes++; !strings.Contains(r.Line, `"DiskPressure","status":"`+step.want+`"`) {
						t.Errorf("%s: %s", step.name, r.Line)
					}
					t.Logf("%s: DiskPressure is %s after %s", step.name, step.want, r.Time.Sub(began).Round(time.Millisecond))
				}
			}
			run(
				diskStep{"filled", func() error { return fs.Fill(10 << 20) }, "True"},
				diskStep{"grown", func() error { return fs.Resize(128) }, "False"},
				diskStep{"most of it reserved", func() error { return fs.Reserve(50) }, "True"},
				diskStep{"none of it reserved", func() error { return fs.Reserve(0) }, "False"},
			)
			user := must.Get(os.Open(fs.Dir))(t)
			defer user.Close()
			run(
				diskStep{"filled again", func() error { return fs.Fill(10 << 20) }, "True"},
				diskStep{"unmounted lazily", func() error { return fs.Unmount(true) }, "False"},
			)
			// Nobody but the user has it now; whatever happens there is nothing to
			// the node.
			user.Close()
			run(
				diskStep{"mounted again", fs.Mount, "True"},
				diskStep{"unmounted", func() error { return fs.Unmount(false) }, "False"},
				diskStep{"mounted once more", fs.Mount, "True"},
				diskStep{"emptied", fs.Empty, "False"},
				diskStep{"filled for good", func() error { return fs.Fill(10 << 20) }, "True"},
			)
			n.WaitCondition(corev1.NodeDiskPressure, corev1.ConditionTrue)
			if all := changed(t, a); len(all) != changes {
				t.Errorf("%d changes, of which only %d had a reason: %+v", len(all), changes, all)
			}
		})
	}
}

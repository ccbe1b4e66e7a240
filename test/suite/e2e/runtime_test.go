package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe/cri/critest"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/containerd"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

const (
	runtimeFails  = "container runtime does not answer"
	runtimeWorks  = "container runtime answers again"
	runtimeCalls  = 4 // that nodeprobe makes
	unknownStatus = "[container runtime status check may not have completed yet, network state unknown]"
)

// Whatever is where the container runtime should be, the node is not ready for the
// kubelet's reasons and in its words, all else is as ever, and it is ready as soon
// as there is a runtime. All the ways in which a runtime can fail are a unit test's.
func TestBadRuntime(t *testing.T) {
	t.Parallel()
	need.Root(t)
	need.Command(t, "containerd", "containerd")
	cp := controlplane.StartForTest(t)
	for _, test := range []struct {
		name  string
		start func(t *testing.T, path string) (stop func())
		want  string // in the log
		real  bool   // the good runtime that takes its place is containerd
	}{
		{"nothing", func(*testing.T, string) func() { return func() {} }, "no such file or directory", false},
		{"regular file", func(t *testing.T, path string) func() {
			must.OK(t, os.WriteFile(path, nil, 0o600))
			return func() { must.OK(t, os.Remove(path)) }
		}, "it is not a socket", true},
		{"hanging", func(t *testing.T, path string) func() {
			l := must.Get(net.Listen("unix", path))(t)
			return func() { l.Close() }
		}, "no answer within 10s", false},
		{"failing", func(t *testing.T, path string) func() {
			return startRuntime(t, path, critest.Replies{Before: func(context.Context, string) error {
				return status.Error(codes.DeadlineExceeded, "for example")
			}})
		}, "DeadlineExceeded: ", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "containerd.sock")
			stop := test.start(t, path)
			n, fs := newFullableNode(t, cp, agent.Config{"containerRuntimeEndpoint": "unix://" + path})
			history, a := n.Follow(), n.Start()
			n.WaitCondition(corev1.NodeReady, corev1.ConditionFalse)
			node := n.MustGet()
			if ready := nodewatch.Condition(node, corev1.NodeReady); ready.Reason != "KubeletNotReady" || ready.Message != unknownStatus {
				t.Errorf("Ready: %s, %s", ready.Reason, ready.Message)
			}
			for _, c := range stage.BuiltIn[:3] {
				if !nodewatch.Has(c, corev1.ConditionFalse)(node) {
					t.Errorf("%+v", nodewatch.Condition(node, c))
				}
			}
			complaint := stage.WaitComplaint(t, a, runtimeFails, test.want)
			if want := "call Status of unix://" + path + ": "; !strings.HasPrefix(complaint.Err, want) {
				t.Errorf("complains %q, want the place: %s", complaint.Err, want)
			}
			// The process is ready all the same: it says what there is to say.
			n.WaitReady(a) // after the first Lease

			filled := time.Now()
			must.OK(t, fs.Fill(full))
			n.WaitCondition(corev1.NodeDiskPressure, corev1.ConditionTrue)
			// A call of the runtime may take ten.
			if took := stage.WaitLogged(t, a, "condition changed", 0).Time.Sub(filled); took > 8*time.Second {
				t.Errorf("disk pressure noticed after %s", took)
			}
			must.OK(t, fs.Empty())
			n.WaitCondition(corev1.NodeDiskPressure, corev1.ConditionFalse)
			stage.Eventually(t, "the runtime is asked again", func() error {
				calls, err := a.Metric(t.Context(), `nodeprobe_cri_calls_total{call="Status"}`)
				if err == nil && calls < 2 {
					err = fmt.Errorf("%g calls", calls)
				}
				return err
			})
			stage.CheckOnce(t, a)
			if lines := stage.Logged(t, a, runtimeFails); len(lines) > runtimeCalls {
				t.Errorf("%d complaints: %+v", len(lines), lines)
			}
			n.WaitRenewed(time.Now())

			stop()
			if test.real {
				containerd.Start(t, containerd.Options{Dir: filepath.Dir(path)})
				n.waitRuntime("containerd://")
			} else {
				stop = startRuntime(t, path, version("1.0.0"))
				n.waitRuntime("fake://1.0.0")
				failed := len(stage.Logged(t, a, runtimeFails))
				stop()
				stage.WaitLogged(t, a, runtimeFails, failed)
				startRuntime(t, path, version("2.0.0")) // sooner than the node becomes unready
				n.waitRuntime("fake://2.0.0")
			}
			n.WaitCondition(corev1.NodeReady, corev1.ConditionTrue)
			stage.WaitLogged(t, a, runtimeWorks, 0)
			n.WaitRenewed(time.Now())
			wantRuntimeHistory(t, history)
		})
	}
}

func (n *node) waitRuntime(want string) {
	n.T.Helper()
	n.Eventually("the runtime's version is "+want, func(node *corev1.Node) error {
		if got := node.Status.NodeInfo.ContainerRuntimeVersion; !strings.HasPrefix(got, want) {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

// wantRuntimeHistory wants the Node to have become ready for good, and never to have
// been short of what the test left alone.
func wantRuntimeHistory(t *testing.T, history *nodewatch.History) {
	t.Helper()
	ready := false
	for _, s := range history.All() {
		c := nodewatch.Condition(s.Node, corev1.NodeReady)
		if ready && c.Status != corev1.ConditionTrue {
			t.Errorf("flipped: %+v", c)
		}
		ready = ready || c.Status == corev1.ConditionTrue
		if nodewatch.Has(corev1.NodeMemoryPressure, corev1.ConditionTrue)(s.Node) || nodewatch.Has(corev1.NodePIDPressure, corev1.ConditionTrue)(s.Node) {
			t.Errorf("flipped: %s", stage.Describe(s.Node))
		}
	}
	if !ready {
		t.Error("never ready")
	}
}

func version(v string) critest.Replies {
	replies := critest.Healthy()
	replies.Version.RuntimeVersion = v
	return replies
}

// startRuntime serves replies at the path until stop is called, or the test ends.
func startRuntime(t *testing.T, path string, replies critest.Replies) (stop func()) {
	t.Helper()
	stop = must.Get(critest.Start(path, replies))(t).Stop
	t.Cleanup(stop)
	return stop
}

package lifecycle

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// A file on the node's root disk that hangs, from the start on, costs the Node that
// fact and nothing else: it registers, is ready, and its Lease is renewed for longer
// than a silent Node would be left alone. The fact comes when the disk answers.
func TestHungRootDisk(t *testing.T) {
	t.Parallel()
	n := newNode(t, agent.Config{"statfsTimeout": "500ms"})
	etc := filepath.Join(n.spec.Dir, "root", "etc")
	release := filepath.Join(etc, "os-release")
	must.OK(t, os.MkdirAll(etc, 0o755))
	must.OK(t, os.WriteFile(filepath.Join(etc, "machine-id"), []byte("0123456789abcdef0123456789abcdef\n"), 0o644))
	must.OK(t, unix.Mkfifo(release, 0o644))
	n.spec.Args = append(n.spec.Args, "--path.rootfs", filepath.Dir(etc))
	a := n.startReady()

	renewals := map[string]bool{}
	until(t, "the lease is renewed again and again", func(ctx context.Context) (watch.Interface, error) {
		return n.client.CoordinationV1().Leases("kube-node-lease").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + n.name})
	}, func(lease *coordinationv1.Lease) error {
		renewals[lease.Spec.RenewTime.String()] = true
		if len(renewals) < 12 { // one a second, and silence is noticed after eight
			return errors.New("too few renewals yet")
		}
		return nil
	})
	for _, s := range n.since(n.wait("ready", a.Started, func(node *corev1.Node) bool { return has(node, allWell) }).At) {
		if s.Node == nil || !has(s.Node, allWell) || s.Node.Status.NodeInfo.OSImage != "" || s.Node.Status.NodeInfo.MachineID == "" {
			t.Errorf("while the file hangs: %s; %+v", describe(s.Node), s.Node.Status.NodeInfo)
		}
	}
	records := must.Get(a.Log())(t)
	said := 0
	for _, r := range records {
		if strings.Contains(r.Line, release+": no answer within 500ms") {
			said++
		}
	}
	if said != 1 {
		t.Errorf("the file was named %d times in the log, want once", said)
	}

	answer := must.Get(os.OpenFile(release, os.O_RDWR, 0))(t) // which does not wait for a reader
	const text = "PRETTY_NAME=\"A disk that is back\"\n"
	must.OK(t, os.Remove(release))
	must.OK(t, os.WriteFile(release, []byte(text), 0o644))
	must.OK(t, answer.Close())
	n.wait("the OS image is known", a.Started, func(node *corev1.Node) bool {
		return node.Status.NodeInfo.OSImage == "A disk that is back"
	})
}

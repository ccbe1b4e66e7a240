package e2e

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
	statusnode "github.com/nodeprobe/nodeprobe/status/node"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// custom is an agent with a setter of its own, which speaks to the API server as
// its node.
type custom struct {
	*node
	updater *status.Updater

	mu  sync.Mutex // guards the rest
	set statusnode.Setter
	log bytes.Buffer
}

func (c *custom) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.Write(p)
}

func (c *custom) logged() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.String()
}

// newCustom starts one whose setter does nothing yet. Nothing is posted in the
// test's time unless it is a change, and no pass is made but after wake.
func newCustom(t *testing.T, runtime *statusnode.Runtime) *custom {
	t.Helper()
	cp := controlplane.StartForTest(t)
	c := &custom{node: &node{t: t, name: controlplane.ObjectName(t), client: cp.Client()}}
	config := must.Get(cp.ConfigFor("system:node:"+c.name, "system:nodes"))(t)
	client := must.Get(kubernetes.NewForConfig(config))(t)
	facts := statusnode.Facts{
		Snapshot: probe.Snapshot{
			Time: time.Now(), Machine: probe.Machine{MachineID: "machine", BootID: "boot"},
			Capacity: probe.Capacity{CPUs: 4, Memory: 8 << 30, MemoryOK: true, EphemeralStorage: 64 << 30},
		},
		Runtime: runtime,
	}
	for i := range facts.Verdicts {
		facts.Verdicts[i] = pressure.Verdict{Condition: pressure.Condition(i), Status: pressure.False, Since: time.Now()}
	}
	content := unheld{statusnode.New(statusnode.Config{
		NodeName: c.name, KubeletVersion: "v1.36.3",
		Addresses: statusnode.Addresses{
			NodeName: c.name, Hostname: c.name, NodeIPs: []net.IP{net.IPv4(192, 0, 2, 1)},
			Interfaces: func() ([]net.Addr, error) { return []net.Addr{&net.IPAddr{IP: net.IPv4(192, 0, 2, 1)}}, nil },
		},
		Resources: statusnode.Resources{MaxPods: 110, LocalStorageCapacityIsolation: true},
		Setters: []statusnode.Setter{func(ctx context.Context, n *corev1.Node) error {
			c.mu.Lock()
			set := c.set
			c.mu.Unlock()
			if set == nil {
				return nil
			}
			return set(ctx, n)
		}},
	})}
	content.Observe(facts)
	c.updater = must.Get(status.New(status.Config{
		NodeName: c.name, Nodes: status.NewNodes(client.CoreV1().RESTClient()), Timeout: 30 * time.Second,
		Content: content, Registrar: content,
		UpdateFrequency: time.Hour, ReportFrequency: time.Hour, RetryRefused: true,
		Logger: slog.New(slog.NewTextHandler(c, nil)),
	}))(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.updater.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	eventually(t, "the node is registered", c.updater.Ready)
	return c
}

// use has the next pass, which is made now, run another setter.
func (c *custom) use(set func(n *corev1.Node)) {
	c.mu.Lock()
	c.set = func(_ context.Context, n *corev1.Node) error { set(n); return nil }
	c.mu.Unlock()
	c.updater.Wake()
}

// eventually waits until the Node is as it should be.
func (c *custom) eventually(what string, check func(n *corev1.Node) error) {
	c.t.Helper()
	eventually(c.t, what, func() error {
		n, err := c.get()
		if err != nil {
			return err
		}
		return check(n)
	})
}

// Labels and annotations that a setter sets, changes and removes are on the Node
// long before the report period is over; those of others stay.
func TestSetterOfMetadata(t *testing.T) {
	t.Parallel()
	c := newCustom(t, nil)
	c.patch(map[string]any{"metadata": map[string]any{
		"labels": map[string]string{foreignKey: "label"}, "annotations": map[string]string{foreignKey: "annotation"},
	}})
	const key = "example.com/rack"
	for _, value := range []string{"r7", "r8", ""} {
		c.use(func(n *corev1.Node) {
			if delete(n.Labels, key); value != "" {
				n.Labels[key] = value
			}
			if delete(n.Annotations, key); value != "" {
				n.Annotations[key] = value
			}
		})
		c.eventually("the rack is "+value, func(n *corev1.Node) error {
			_, labelled := n.Labels[key]
			_, annotated := n.Annotations[key]
			if n.Labels[key] != value || n.Annotations[key] != value || labelled != (value != "") || annotated != (value != "") {
				return fmt.Errorf("labels %v, annotations %v", n.Labels, n.Annotations)
			}
			return nil
		})
	}
	if n := c.mustGet(); n.Labels[foreignKey] != "label" || n.Annotations[foreignKey] != "annotation" {
		t.Errorf("something foreign was lost: labels %v, annotations %v", n.Labels, n.Annotations)
	}
}

// A label that a node must not set keeps its status from being posted, in clear
// words, until the setter does without it.
func TestSetterOfForbiddenLabel(t *testing.T) {
	t.Parallel()
	c := newCustom(t, nil)
	const key = "node-restriction.kubernetes.io/zone"
	c.use(func(n *corev1.Node) { n.Labels[key] = "a"; n.Status.Phase = corev1.NodeRunning })
	eventually(t, "it is refused", func() error {
		if err := c.updater.Ready(); err == nil || !strings.Contains(err.Error(), "is not allowed to modify labels: "+key) {
			return fmt.Errorf("ready: %w", err)
		}
		return nil
	})
	if log := c.logged(); !strings.Contains(log, "is not allowed to modify labels: "+key) {
		t.Errorf("logged: %s", log)
	}
	c.use(func(n *corev1.Node) { n.Status.Phase = corev1.NodeRunning })
	c.eventually("the rest is posted", func(n *corev1.Node) error {
		if n.Status.Phase != corev1.NodeRunning || c.updater.Ready() != nil {
			return fmt.Errorf("phase %q, ready: %w", n.Status.Phase, c.updater.Ready())
		}
		return nil
	})
}

// The spec is not a setter's: that is logged, and the rest is posted.
func TestSetterOfSpec(t *testing.T) {
	t.Parallel()
	c := newCustom(t, nil)
	taint := corev1.Taint{Key: foreignKey, Effect: corev1.TaintEffectNoSchedule}
	c.use(func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, taint)
		n.Labels[foreignKey] = "label"
	})
	c.eventually("the label is set", func(n *corev1.Node) error {
		if n.Labels[foreignKey] != "label" {
			return errNotYet
		}
		return nil
	})
	if hasTaint(c.mustGet(), taint) {
		t.Error("the taint is set")
	}
	if log := c.logged(); !strings.Contains(log, "a setter changes spec") {
		t.Errorf("logged: %s", log)
	}
}

// What a setter sets of an extended resource is posted as it is, and what it takes
// from a Node is back once it leaves that be.
func TestSetterOfStatus(t *testing.T) {
	t.Parallel()
	images := []corev1.ContainerImage{
		{Names: []string{"example.com/a:1"}, SizeBytes: 3}, {Names: []string{"internal.example.com/b:1"}, SizeBytes: 2}, {Names: []string{"example.com/c:1"}, SizeBytes: 1},
	}
	c := newCustom(t, &statusnode.Runtime{Version: "containerd://2.0.0", Images: slices.Clone(images)})
	shows := func(want int) func(n *corev1.Node) error {
		return func(n *corev1.Node) error {
			if len(n.Status.Images) != want || slices.ContainsFunc(n.Status.Images, func(i corev1.ContainerImage) bool { return len(i.Names) == 0 }) {
				return fmt.Errorf("images %v, want %d of them", n.Status.Images, want)
			}
			return nil
		}
	}
	c.eventually("all images are shown", shows(3))
	c.use(func(n *corev1.Node) {
		n.Status.Images = slices.DeleteFunc(n.Status.Images, func(i corev1.ContainerImage) bool {
			return strings.HasPrefix(i.Names[0], "internal.")
		})
	})
	c.eventually("one image is hidden", shows(2))

	for _, usable := range []string{"3", "4", "2"} {
		c.use(func(n *corev1.Node) {
			n.Status.Capacity[foreignDevice], n.Status.Allocatable[foreignDevice] = resource.MustParse("4"), resource.MustParse(usable)
		})
		c.eventually(usable+" devices are usable", func(n *corev1.Node) error {
			capacity, allocatable := n.Status.Capacity[foreignDevice], n.Status.Allocatable[foreignDevice]
			if capacity.String() != "4" || allocatable.String() != usable {
				return fmt.Errorf("%s of %s", allocatable.String(), capacity.String())
			}
			return nil
		})
	}
	c.eventually("all images are shown again", shows(3))
}

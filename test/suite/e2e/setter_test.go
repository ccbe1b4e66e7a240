package e2e

import (
	"bytes"
	"context"
	"errors"
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

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
	statusnode "github.com/nodeprobe/nodeprobe/status/node"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
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

// someFacts are those of a machine where all is well.
func someFacts() statusnode.Facts {
	f := statusnode.Facts{Snapshot: probe.Snapshot{
		Time: time.Now(), Machine: probe.Machine{MachineID: "machine", BootID: "boot"},
		Capacity: probe.Capacity{CPUs: 4, Memory: 8 << 30, MemoryOK: true, EphemeralStorage: 64 << 30},
	}}
	for i := range f.Verdicts {
		f.Verdicts[i] = pressure.Verdict{Condition: pressure.Condition(i), Status: pressure.False, Since: time.Now()}
	}
	return f
}

// unheld is a content of which no change is held back.
type unheld struct{ *statusnode.Content }

func (u unheld) Draft(ctx context.Context, old *corev1.Node, now time.Time, due bool) status.Draft {
	draft := u.Content.Draft(ctx, old, now, due)
	draft.Urgent = true
	return draft
}

// startUpdater runs an updater with the node's identity until the test ends. Nothing is
// posted in the test's time unless it is a change, and no pass is made but after Wake.
func (n *node) startUpdater(facts statusnode.Facts, change func(*status.Config, *statusnode.Config)) (*status.Updater, unheld) {
	n.T.Helper()
	ip := net.IPv4(192, 0, 2, 1)
	cfg := status.Config{
		NodeName: n.Name, Nodes: status.NewNodes(n.AsNode().CoreV1().RESTClient()), Timeout: 30 * time.Second,
		UpdateFrequency: time.Hour, ReportFrequency: time.Hour, RetryRefused: true,
	}
	of := statusnode.Config{
		NodeName: n.Name, KubeletVersion: "v1.36.3",
		Addresses: statusnode.Addresses{
			NodeName: n.Name, Hostname: n.Name, NodeIPs: []net.IP{ip},
			Interfaces: func() ([]net.Addr, error) { return []net.Addr{&net.IPAddr{IP: ip}}, nil },
		},
		Resources: statusnode.Resources{MaxPods: 110, LocalStorageCapacityIsolation: true},
	}
	change(&cfg, &of)
	content := unheld{statusnode.New(of)}
	content.Observe(facts)
	cfg.Content, cfg.Registrar = content, content
	updater := must.Get(status.New(cfg))(n.T)
	ctx, stop := context.WithCancel(n.T.Context())
	ended := make(chan error, 1)
	go func() { ended <- updater.Run(ctx) }()
	n.T.Cleanup(func() { stop(); <-ended })
	stage.Eventually(n.T, "the node is registered", updater.Ready)
	return updater, content
}

// newCustom starts one whose setter does nothing yet.
func newCustom(t *testing.T, runtime *statusnode.Runtime) *custom {
	t.Helper()
	c := &custom{node: newNode(t, controlplane.StartForTest(t), nil)}
	facts := someFacts()
	facts.Runtime = runtime
	c.updater, _ = c.startUpdater(facts, func(cfg *status.Config, of *statusnode.Config) {
		cfg.Logger = slog.New(slog.NewTextHandler(c, nil))
		of.Setters = []statusnode.Setter{func(ctx context.Context, n *corev1.Node) error {
			c.mu.Lock()
			set := c.set
			c.mu.Unlock()
			if set == nil {
				return nil
			}
			return set(ctx, n)
		}}
	})
	return c
}

// use has the next pass, which is made now, run another setter.
func (c *custom) use(set func(n *corev1.Node)) {
	c.mu.Lock()
	c.set = func(_ context.Context, n *corev1.Node) error { set(n); return nil }
	c.mu.Unlock()
	c.updater.Wake()
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
		c.Eventually("the rack is "+value, func(n *corev1.Node) error {
			_, labelled := n.Labels[key]
			_, annotated := n.Annotations[key]
			if n.Labels[key] != value || n.Annotations[key] != value || labelled != (value != "") || annotated != (value != "") {
				return fmt.Errorf("labels %v, annotations %v", n.Labels, n.Annotations)
			}
			return nil
		})
	}
	if n := c.MustGet(); n.Labels[foreignKey] != "label" || n.Annotations[foreignKey] != "annotation" {
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
	stage.Eventually(t, "it is refused", func() error {
		if err := c.updater.Ready(); err == nil || !strings.Contains(err.Error(), "is not allowed to modify labels: "+key) {
			return fmt.Errorf("ready: %w", err)
		}
		return nil
	})
	if log := c.logged(); !strings.Contains(log, "is not allowed to modify labels: "+key) {
		t.Errorf("logged: %s", log)
	}
	c.use(func(n *corev1.Node) { n.Status.Phase = corev1.NodeRunning })
	c.Eventually("the rest is posted", func(n *corev1.Node) error {
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
	c.Eventually("the label is set", func(n *corev1.Node) error {
		if n.Labels[foreignKey] != "label" {
			return errors.New("it is not")
		}
		return nil
	})
	if stage.HasTaint(c.MustGet(), taint) {
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
	c.Eventually("all images are shown", shows(3))
	c.use(func(n *corev1.Node) {
		n.Status.Images = slices.DeleteFunc(n.Status.Images, func(i corev1.ContainerImage) bool {
			return strings.HasPrefix(i.Names[0], "internal.")
		})
	})
	c.Eventually("one image is hidden", shows(2))

	for _, usable := range []string{"3", "4", "2"} {
		c.use(func(n *corev1.Node) {
			n.Status.Capacity[foreignDevice], n.Status.Allocatable[foreignDevice] = resource.MustParse("4"), resource.MustParse(usable)
		})
		c.Eventually(usable+" devices are usable", func(n *corev1.Node) error {
			capacity, allocatable := n.Status.Capacity[foreignDevice], n.Status.Allocatable[foreignDevice]
			if capacity.String() != "4" || allocatable.String() != usable {
				return fmt.Errorf("%s of %s", allocatable.String(), capacity.String())
			}
			return nil
		})
	}
	c.Eventually("all images are shown again", shows(3))
}

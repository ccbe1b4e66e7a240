package main

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/status"
	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

const (
	// noticeTimeout is how long a crossing may go unnoticed: nodeprobe's own
	// samples come every ten seconds.
	noticeTimeout = 15 * time.Second
	// calmTimeout is how long others on this machine may press on it.
	calmTimeout = 3 * time.Minute
	// transition is how long a condition outlasts its cause.
	transition = time.Second
	// poise is the pause between the approach and the clocked steps: a process
	// that has just been busy is faster than one that has slept. A part of it is
	// random, so that nothing falls into step with anything.
	poise = 300 * time.Millisecond
)

// stage is where crossings are made.
type stage struct {
	*program.P
	cp      *controlplane.ControlPlane
	watcher kubernetes.Interface // sees the Nodes
	binary  string
	dir     string // of the agents' files
	floor   *floor // nil before the first crossing
}

// node is a nodeprobe, or a kubelet, with its Node.
type node struct {
	*stage
	name    string
	history *nodewatch.History
	agent   *agent.Agent // nil for a kubelet
	exited  <-chan struct{}
}

func (s *stage) follow(name string) *node {
	return &node{stage: s, name: name, history: nodewatch.FollowForTest(s, s.watcher, name)}
}

func (s *stage) start(name string, l *load, limit int64) *node {
	n := s.follow(name)
	hard, conditions := map[string]string{l.signal: l.text(limit)}, map[string]any{}
	if l.rule {
		conditions[string(l.condition)] = map[string]any{
			"when": []string{l.signal + " < " + hard[l.signal]}, "hold": transition.String(), "reason": "Short", "okReason": "Enough",
		}
		hard = nil
	}
	n.agent = agent.StartForTest(s, agent.Spec{
		Binary: s.binary, Dir: s.dir, NodeName: name, Kubeconfig: must.Get(s.cp.NodeKubeconfig(name))(s),
		// But for the limit and the transition period, all of it is the default.
		Config: agent.Own().With(agent.Config{
			"bpf":            "auto",
			"sampleInterval": "10s", "nodeStatusUpdateFrequency": "10s", "nodeLeaseDurationSeconds": 40,
			"evictionHard":                     agent.Hard(hard),
			"conditions":                       conditions,
			"evictionPressureTransitionPeriod": transition.String(),
			"logLevel":                         "debug",
		}).With(l.config),
	})
	n.exited = n.agent.Exited()
	return n
}

func (n *node) sleep(d time.Duration) { n.SleepBeside(n.exited, d) }

func (n *node) log() []agent.Record { return must.Get(n.agent.Log())(n) }

// calm waits until the condition is False.
func (n *node) calm(condition corev1.NodeConditionType) {
	for deadline := time.Now().Add(calmTimeout); n.status(condition) != corev1.ConditionFalse; n.sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.Fatalf("%s of node %s is not False after %s: something else presses on this machine", condition, n.name, calmTimeout)
		}
	}
}

func (n *node) status(condition corev1.NodeConditionType) corev1.ConditionStatus {
	return nodewatch.Condition(cmp.Or(n.history.Last(), &corev1.Node{}), condition).Status
}

// approach brings what is available near to where the clocked steps begin, and lets
// everything come to rest. Others use and give back memory and tasks as well.
func (n *node) approach(l *load, limit int64) {
	deadline := time.Now().Add(calmTimeout)
	for near := 0; near < 2; { // once more after the pause
		pause := time.Millisecond
		switch surplus := must.Get(l.ramp.Available())(n) - limit - l.beginning; {
		case time.Now().After(deadline):
			n.Fatalf("%s does not stay near %s: something else presses on this machine", l.signal, l.text(limit))
		case surplus > l.beginning/2:
			near = 0
			must.OK(n, pressure.Jump(l.ramp, min(surplus, l.spacing)))
		case surplus < -l.beginning/2:
			near = 0
			must.OK(n, l.ramp.Give(-surplus))
		default:
			if near++; near == 1 {
				pause = poise + rand.N(poise)
			}
		}
		n.sleep(pause)
	}
}

// rest waits until nodeprobe has two changes to post at once: that the limit is crossed,
// and that it no longer is.
func (n *node) rest() {
	for agent.PostsLeft(n.log(), time.Now()) < 2 {
		n.sleep(200 * time.Millisecond)
	}
}

// cross makes one crossing and returns its trace, nil if another process was faster.
func (n *node) cross(l *load, limit int64) *trace {
	n.rest()
	begin := time.Now()
	n.approach(l, limit)
	if n.disturbed(l, begin) {
		return nil
	}
	t := &trace{}
	begin, err := time.Now(), error(nil)
	if t.crossed, err = pressure.Cross(l.ramp, limit, l.step); errors.Is(err, pressure.ErrForeign) {
		return nil
	}
	must.OK(n, errors.Join(err, l.ramp.Take(l.beyond)))
	n.press(l, limit, begin, t)
	n.sleep(50 * time.Millisecond) // nodeprobe writes a line of its log after the fact
	must.OK(n, t.follow(n.log(), string(l.condition), begin))
	return t
}

// seen returns when the condition was seen to become True since then, zero if it was
// not within a time.
func (n *node) seen(since time.Time, condition corev1.NodeConditionType, within time.Duration) time.Time {
	ctx, cancel := context.WithTimeout(n.Context(), within)
	defer cancel()
	seen, err := n.history.Wait(ctx, since, nodewatch.Has(condition, corev1.ConditionTrue))
	if err != nil && (n.Context().Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
		n.Fatal(err)
	}
	return seen.At
}

// press keeps up the pressure, whatever others give back, until the Node shows it or
// the time is over.
func (n *node) press(l *load, limit int64, since time.Time, t *trace) {
	for deadline := time.Now().Add(noticeTimeout); time.Now().Before(deadline); {
		if t.seen = n.seen(since, l.condition, 20*time.Millisecond); !t.seen.IsZero() {
			return
		}
		if available := must.Get(l.ramp.Available())(n); available >= limit {
			t.wavered++
			must.OK(n, l.ramp.Take(available-limit+l.beyond))
		}
	}
}

// disturbed reports whether another process has crossed the limit since the given
// time, or did so before and the condition is still True.
func (n *node) disturbed(l *load, since time.Time) bool {
	var t trace
	log := n.log()
	must.OK(n, t.follow(log, string(l.condition), since))
	return !t.event.IsZero() || must.Get(lastStatus(log, string(l.condition)))(n) == "True" || n.status(l.condition) != corev1.ConditionFalse
}

// floor is what no agent can be faster than: it has the patch ready, and the
// time runs from when it is sent until a watch shows the Node that it makes. It
// is taken right after each crossing, from as much rest.
type floor struct {
	*node
	client kubernetes.Interface
	now    *corev1.Node
}

func newFloor(s *stage, like *corev1.Node) *floor {
	f := &floor{node: s.follow("floor")}
	user, groups := controlplane.NodeUser(f.name)
	f.client = must.Get(kubernetes.NewForConfig(s.cp.ConfigFor(user, groups...)))(s)
	f.now = must.Get(f.client.CoreV1().Nodes().Create(s.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: f.name}, Status: *like.Status.DeepCopy(),
	}, metav1.CreateOptions{}))(s)
	return f
}

// measure flips a condition, as nodeprobe does it.
func (f *floor) measure() time.Duration {
	const condition = corev1.NodeDiskPressure
	next, flipped := f.now.DeepCopy(), corev1.ConditionTrue
	for i := range next.Status.Conditions {
		c := &next.Status.Conditions[i]
		c.LastHeartbeatTime = metav1.Now()
		if c.Type != condition {
			continue
		}
		if c.Status == flipped {
			flipped = corev1.ConditionFalse
		}
		c.Status, c.LastTransitionTime = flipped, metav1.Now()
	}
	patch := must.Get(status.Patch(f.now, next))(f)
	begin := time.Now()
	f.now = must.Get(f.client.CoreV1().Nodes().Patch(f.Context(), f.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"))(f)
	ctx, cancel := context.WithTimeout(f.Context(), noticeTimeout)
	defer cancel()
	return must.Get(f.history.Wait(ctx, begin, nodewatch.Has(condition, flipped)))(f).At.Sub(begin)
}

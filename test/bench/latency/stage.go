package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
)

const (
	// noticeTimeout is how long a crossing may go unnoticed: nodeprobe's own
	// samples come every ten seconds.
	noticeTimeout = 15 * time.Second
	// calmTimeout is how long others on this machine may press on it.
	calmTimeout = 3 * time.Minute
	// transition is how long a condition outlasts its cause.
	transition = time.Second
)

// node is a nodeprobe, or a kubelet, with its Node.
type node struct {
	name    string
	history *nodewatch.History
	agent   *agent.Agent // nil for a kubelet
	exited  <-chan struct{}
}

// stage is where crossings are made.
type stage struct {
	cp      *controlplane.ControlPlane
	watcher kubernetes.Interface // sees the Nodes
	binary  string
	dir     string // of the agents' files
	rootfs  string // the filesystem to fill
	floor   *floor // nil before the first crossing
}

// start runs a nodeprobe with one limit, and returns when its Node says that all
// is well.
func (s *stage) start(ctx context.Context, name string, l *load, limit int64) (*node, error) {
	kubeconfig, err := s.cp.NodeKubeconfig(name)
	if err != nil {
		return nil, err
	}
	n := &node{name: name}
	if n.history, err = nodewatch.Follow(ctx, s.watcher, name); err != nil {
		return nil, err
	}
	n.agent, err = agent.Start(ctx, agent.Spec{
		Binary: s.binary, Dir: s.dir, NodeName: name, Kubeconfig: kubeconfig,
		// But for the limit and the transition period, all of it is the default.
		Config: agent.Own().With(agent.Config{
			"bpf": "auto", "rootDirectory": s.rootfs,
			"sampleInterval": "10s", "nodeStatusUpdateFrequency": "10s", "nodeLeaseDurationSeconds": 40,
			"evictionHard":                     agent.Hard(map[string]string{l.signal: l.text(limit)}),
			"evictionPressureTransitionPeriod": transition.String(),
			"logLevel":                         "debug",
		}),
	})
	if err != nil {
		return nil, err
	}
	n.exited = n.agent.Exited()
	return n, nil
}

// calm waits until the condition is False, be it because of us or of others.
func (n *node) calm(ctx context.Context, condition corev1.NodeConditionType) error {
	ctx, cancel := context.WithTimeoutCause(ctx, calmTimeout,
		fmt.Errorf("%s of node %s is not False after %s: something else presses on this machine", condition, n.name, calmTimeout))
	defer cancel()
	for n.status(condition) != corev1.ConditionFalse {
		if err := n.wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// status is what the condition was last.
func (n *node) status(condition corev1.NodeConditionType) corev1.ConditionStatus {
	node := n.history.Last()
	if node == nil {
		return ""
	}
	return nodewatch.Condition(node, condition).Status
}

// wait is a pause that ^C ends, and so does the end of the process.
func (n *node) wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-n.exited:
		return fmt.Errorf("%s has ended", n.name)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// approach brings what is available to where the clocked steps begin, and lets
// everything come to rest.
func (n *node) approach(ctx context.Context, l *load, limit int64) error {
	deadline := time.Now().Add(calmTimeout)
	low, high := limit+l.beginning/2, limit+l.beginning*3/2
	for at := 0; at < 2; { // once more after the pause
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not stay near %s: something else presses on this machine", l.signal, l.text(limit))
		}
		there, err := approach(l.ramp, low, high, l.spacing)
		if err != nil {
			return err
		}
		pause := time.Millisecond
		if at++; !there {
			at = 0
		} else if at == 1 {
			pause = poise + rand.N(poise)
		}
		if err := n.wait(ctx, pause); err != nil {
			return err
		}
	}
	return nil
}

// cross makes one crossing, and returns how it made its way. The error is
// errForeign if somebody else was faster.
func (s *stage) cross(ctx context.Context, n *node, l *load, limit int64) (*trace, error) {
	if err := n.rest(ctx); err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := n.approach(ctx, l, limit); err != nil {
		return nil, err
	}
	if foreign, err := n.disturbed(l, begin); err != nil || foreign {
		return nil, errors.Join(err, errForeign)
	}
	t := &trace{}
	begin, err := time.Now(), error(nil)
	if t.crossed, err = cross(l.ramp, limit, l.step); err != nil {
		return nil, err
	}
	if err := l.ramp.Take(l.beyond); err != nil {
		return nil, err
	}
	if err := n.press(ctx, l, limit, begin, t); err != nil {
		return nil, err
	}
	// nodeprobe writes a line of its log after the fact.
	if err := n.wait(ctx, 50*time.Millisecond); err != nil {
		return nil, err
	}
	log, err := n.agent.Log()
	if err != nil {
		return nil, err
	}
	return t, t.follow(log, string(l.condition), begin)
}

// rest waits until nodeprobe may post two changes at once: that the limit is
// crossed, and that it no longer is.
func (n *node) rest(ctx context.Context) error {
	for {
		log, err := n.agent.Log()
		if err != nil {
			return err
		}
		if posts(log, time.Now()) >= 2 {
			return nil
		}
		if err := n.wait(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// press keeps up the pressure, whatever others give back, until the Node tells
// of it or the time is over.
func (n *node) press(ctx context.Context, l *load, limit int64, since time.Time, t *trace) error {
	for deadline := time.Now().Add(noticeTimeout); t.seen.IsZero() && time.Now().Before(deadline); {
		wait, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		seen, err := n.history.Wait(wait, since, nodewatch.Has(l.condition, corev1.ConditionTrue))
		cancel()
		t.seen = seen.At
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			return nil
		case !errors.Is(err, context.DeadlineExceeded):
			return err
		}
		available, err := l.ramp.Available()
		if err != nil {
			return err
		}
		if available >= limit {
			t.wavered++
			if err := l.ramp.Take(available - limit + l.beyond); err != nil {
				return err
			}
		}
	}
	return nil
}

// disturbed says whether somebody else has crossed the limit since the given
// time, or did so before and nodeprobe has not got over it.
func (n *node) disturbed(l *load, since time.Time) (bool, error) {
	log, err := n.agent.Log()
	if err != nil {
		return false, err
	}
	var t trace
	if err := t.follow(log, string(l.condition), since); err != nil {
		return false, err
	}
	status, err := lastStatus(log, string(l.condition))
	return !t.event.IsZero() || status == "True" || n.status(l.condition) != corev1.ConditionFalse, err
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
)

// stage is where the scenes are played.
type stage struct {
	out     io.Writer
	begin   time.Time
	cp      *controlplane.ControlPlane
	agent   *agent.Agent
	history *nodewatch.History // the administrator's view of the Node
}

// say prints a line with the time since the beginning.
func (s *stage) say(format string, args ...any) {
	fmt.Fprintf(s.out, "%6.1fs  %s\n", time.Since(s.begin).Seconds(), fmt.Sprintf(format, args...))
}

// quote prints lines that somebody else has written.
func (s *stage) quote(text string) {
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		fmt.Fprintf(s.out, "         │ %s\n", strings.TrimRight(line, "\n"))
	}
}

// outcome is what a scene took.
type outcome struct{ becameTrue, becameFalse time.Duration }

// perform plays everything.
func (s *stage) perform(ctx context.Context, scenes []*scene) error {
	if err := s.register(ctx); err != nil {
		return err
	}
	outcomes := make([]outcome, len(scenes))
	for i, scene := range scenes {
		if i > 0 {
			if err := s.wait(ctx, pace); err != nil {
				return err
			}
		}
		var err error
		if outcomes[i], err = s.play(ctx, scene, i == 1); err != nil {
			return fmt.Errorf("%s: %w", scene.Condition, err)
		}
	}

	fmt.Fprintln(s.out)
	table := tabwriter.NewWriter(s.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "condition\tthreshold\tTrue after crossing\tFalse after release")
	for i, o := range outcomes {
		fmt.Fprintf(table, "%s\t%s<%s\t%s\t%s\n", scenes[i].Condition, scenes[i].Signal, scenes[i].Threshold,
			millis(o.becameTrue), millis(o.becameFalse))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	// In the form that the benchmarks' figures have.
	for i, o := range outcomes {
		// The budget is that of crossing to Node patched, 99 times out of 100.
		fmt.Fprintf(s.out, "RESULT demo_%s_seconds=%.3f s budget=0.025\n",
			strings.ToLower(strings.TrimSuffix(string(scenes[i].Condition), "Pressure")), o.becameTrue.Seconds())
	}
	return nil
}

func millis(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// register shows how the Node and its Lease come about.
func (s *stage) register(ctx context.Context) error {
	seen, err := s.see(ctx, s.agent.Started, corev1.NodeReady, corev1.ConditionTrue)
	if err != nil {
		return err
	}
	s.say("Node %s is registered and Ready, %s after nodeprobe was started", nodeName, millis(seen.At.Sub(s.agent.Started)))
	if err := s.kubectlGet(ctx); err != nil {
		return err
	}
	var renewals []time.Time
	ctx, cancel := context.WithTimeoutCause(ctx, flipTimeout, errors.New("the Lease is not renewed"))
	defer cancel()
	for len(renewals) < 3 {
		lease, err := s.cp.Client().CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, nodeName, metav1.GetOptions{})
		if err == nil && (len(renewals) == 0 || lease.Spec.RenewTime.After(renewals[len(renewals)-1])) {
			renewals = append(renewals, lease.Spec.RenewTime.Time)
		}
		if err := s.wait(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	s.say("Lease %s/%s is renewed every %s", corev1.NamespaceNodeLease, nodeName,
		(renewals[2].Sub(renewals[0]) / 2).Round(10*time.Millisecond))
	return nil
}

// play has one condition become True, and False again.
func (s *stage) play(ctx context.Context, scene *scene, yaml bool) (o outcome, err error) {
	before, err := s.calm(ctx, scene)
	if err != nil {
		return o, err
	}
	fmt.Fprintln(s.out)
	s.say("%s is %s, the limit %s; now for pressure, down to %s", scene.Signal, scene.unit(before), scene.unit(scene.Limit), scene.unit(scene.Left))

	// The limit is crossed on the way to the whole of the pressure.
	start := time.Now()
	pressed := make(chan error, 1)
	go func() { pressed <- scene.Press() }()
	release := sync.OnceValue(func() error { return errors.Join(<-pressed, scene.Release()) })
	// Whatever happens, the pressure ends before the demo does.
	defer func() { err = errors.Join(err, release()) }()
	at := scene.watch(ctx, true)
	if at.err != nil {
		return o, at.err
	}
	seen, err := s.see(ctx, start, scene.Condition, corev1.ConditionTrue)
	if err != nil {
		return o, err
	}
	o.becameTrue = max(0, seen.At.Sub(at.time))
	s.say("crossed at %s; %s is True at the API server at %s, %s later", at.time.Format(clock),
		scene.Condition, seen.At.Format(clock), millis(o.becameTrue))
	if yaml {
		err = s.kubectlYAML(ctx, scene.Condition)
	} else {
		err = s.conditions(ctx)
	}
	if err != nil {
		return o, err
	}
	if err := s.wait(ctx, pace); err != nil {
		return o, err
	}

	start = time.Now()
	released := make(chan error, 1)
	go func() { released <- release() }()
	if at = scene.watch(ctx, false); at.err != nil {
		return o, at.err
	}
	if seen, err = s.see(ctx, start, scene.Condition, corev1.ConditionFalse); err != nil {
		return o, err
	}
	o.becameFalse = seen.At.Sub(at.time)
	s.say("released at %s; %s is False at %s, %s later (it is held for %s)", at.time.Format(clock),
		scene.Condition, seen.At.Format(clock), millis(o.becameFalse), transition)
	return o, <-released
}

// clock is how a time of day is printed.
const clock = "15:04:05.000"

// calm waits until the condition is False and its limit not crossed, which is
// how things are unless something else happens on the machine. It returns how
// much is available.
func (s *stage) calm(ctx context.Context, scene *scene) (available int64, err error) {
	deadline := time.Now().Add(flipTimeout)
	for {
		node, err := s.node(ctx)
		if err != nil {
			return 0, err
		}
		if available, err = scene.Available(); err != nil {
			return 0, err
		}
		if available > scene.Limit && nodewatch.Has(scene.Condition, corev1.ConditionFalse)(node) {
			return available, nil
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("%s is %s before anything was done: something else presses on this machine", scene.Signal, scene.unit(available))
		}
		if err := s.wait(ctx, 100*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// crossing is when a limit was crossed.
type crossing struct {
	time time.Time
	err  error
}

// watch returns when less is available than the limit, or no longer. It looks
// every millisecond, so that what is measured is nodeprobe and not how long the
// pressure takes to build up and to go.
func (s *scene) watch(ctx context.Context, less bool) crossing {
	deadline := time.Now().Add(flipTimeout)
	for time.Now().Before(deadline) {
		available, err := s.Available()
		if err != nil || (available < s.Limit) == less {
			return crossing{time.Now(), err}
		}
		select {
		case <-ctx.Done():
			return crossing{err: context.Cause(ctx)}
		case <-time.After(time.Millisecond):
		}
	}
	return crossing{err: fmt.Errorf("%s did not cross %s within %s", s.Signal, s.unit(s.Limit), flipTimeout)}
}

// see waits until the condition has the status.
func (s *stage) see(ctx context.Context, since time.Time, condition corev1.NodeConditionType, status corev1.ConditionStatus) (nodewatch.Sighting, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, flipTimeout, fmt.Errorf("%s did not become %s within %s", condition, status, flipTimeout))
	defer cancel()
	return s.history.Wait(ctx, since, nodewatch.Has(condition, status))
}

// wait is a pause that ^C ends, and so does the end of nodeprobe.
func (s *stage) wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-s.agent.Exited():
		return errors.New("nodeprobe has ended")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// kubectl returns what kubectl prints, or false where there is none.
func (s *stage) kubectl(ctx context.Context, args ...string) (string, bool) {
	var stdout bytes.Buffer
	cmd := exec.CommandContext(ctx, "kubectl", append([]string{"--kubeconfig", s.cp.AdminKubeconfig()}, args...)...)
	cmd.Stdout = &stdout
	err := cmd.Run()
	return stdout.String(), err == nil
}

// kubectlGet shows the Node as kubectl does, or says the same.
func (s *stage) kubectlGet(ctx context.Context) error {
	text, ok := s.kubectl(ctx, "get", "node", nodeName)
	if !ok {
		node, err := s.node(ctx)
		if err != nil {
			return err
		}
		text = fmt.Sprintf("%s: Ready is %s, version %s", node.Name, nodewatch.Condition(node, corev1.NodeReady).Status, node.Status.NodeInfo.KubeletVersion)
	} else {
		text = "$ kubectl get node " + nodeName + "\n" + text
	}
	s.quote(text)
	return nil
}

// conditions shows all conditions of the Node in a line.
func (s *stage) conditions(ctx context.Context) error {
	node, err := s.node(ctx)
	if err != nil {
		return err
	}
	var parts []string
	for _, c := range node.Status.Conditions {
		parts = append(parts, fmt.Sprintf("%s=%s", c.Type, c.Status))
	}
	s.quote(strings.Join(parts, "  "))
	return nil
}

// kubectlYAML shows one condition as the Node's YAML has it.
func (s *stage) kubectlYAML(ctx context.Context, condition corev1.NodeConditionType) error {
	const item = "  - lastHeartbeatTime:"
	text, _ := s.kubectl(ctx, "get", "node", nodeName, "-o", "yaml")
	for part := range strings.SplitSeq(text, item) {
		if body, _, found := strings.Cut(part, "    type: "+string(condition)+"\n"); found {
			s.quote("$ kubectl get node " + nodeName + " -o yaml\n  …\n" + item + body + "    type: " + string(condition) + "\n  …")
			return nil
		}
	}
	return s.conditions(ctx)
}

func (s *stage) node(ctx context.Context) (*corev1.Node, error) {
	return s.cp.Client().CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
}

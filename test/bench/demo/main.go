// Command demo shows nodeprobe at work, in about a minute: a real API server,
// the real nodeprobe in mode own, and real pressure on this machine, bounded,
// on memory, disk and process IDs. For each condition it prints how long after
// the limit was crossed the API server showed it.
//
//	go run ./bench/demo
//
// It needs root, for the pressure. Whatever it makes or starts is gone when it
// ends, by ^C too.
package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

func main() {
	pressure.Main()
	program.Main("demo", run)
}

const nodeName = "demo"

const (
	sampleInterval = 10 * time.Second
	// transition is how long a condition outlasts its cause. A kubelet's five
	// minutes would make for a long demo.
	transition = time.Second
	// flipTimeout is how long a change may take before the demo has failed.
	flipTimeout = 30 * time.Second
	// pace is the time between a change and the next. nodeprobe posts three
	// changes at once and six a minute, whatever flaps; a faster demo would
	// measure how long it holds them back.
	pace = 8 * time.Second
	// clock is how a time of day is printed.
	clock = "15:04:05.000"
)

func run(p *program.P) {
	binary := p.ParseNodeprobe()
	need.Root(p)
	cp := p.ControlPlane(controlplane.Options{})
	s := &stage{P: p, cp: cp, begin: time.Now()}

	fs := pressure.Disk(p, 64)
	loads := pressure.Loads(p, fs)
	s.history = nodewatch.FollowForTest(p, cp.Client(), nodeName)
	s.agent = agent.StartForTest(p, agent.Spec{
		Binary: binary, Dir: p.TempDir(), NodeName: nodeName, Kubeconfig: must.Get(cp.NodeKubeconfig(nodeName))(p),
		Config: agent.Own().With(agent.Config{
			"bpf": "auto", "sampleInterval": sampleInterval.String(), "rootDirectory": fs.Dir, "logFormat": "text",
			"evictionHard": agent.Hard(pressure.Thresholds(loads)), "evictionPressureTransitionPeriod": transition.String(),
		}),
	})
	s.say("nodeprobe runs in mode own (pid %d), with a sample every %s", s.agent.PID(), sampleInterval)
	seen := s.see(s.agent.Started, corev1.NodeReady, corev1.ConditionTrue)
	s.say("Node %s is registered and Ready, %s after nodeprobe was started", nodeName, millis(seen.Sub(s.agent.Started)))
	s.conditions()
	rows := []string{"condition\tthreshold\tTrue after crossing\tFalse after release"}
	var figures []program.Figure
	for i, l := range loads {
		if i > 0 {
			s.sleep(pace)
		}
		becameTrue, becameFalse := s.play(l, i == 1)
		rows = append(rows, fmt.Sprintf("%s\t%s<%s\t%s\t%s", l.Condition, l.Signal, l.Threshold, millis(becameTrue), millis(becameFalse)))
		// The budget is that of crossing to Node patched, 99 times out of 100.
		name := strings.ToLower(strings.TrimSuffix(string(l.Condition), "Pressure"))
		figures = append(figures, program.Figure{Name: "demo_" + name + "_seconds", Value: becameTrue.Seconds(), Digits: 3, Unit: "s", Budget: 0.025})
	}
	fmt.Fprintln(p.Out)
	p.Table(rows...)
	p.Print(figures)
}

// stage is where the conditions flip.
type stage struct {
	*program.P
	begin   time.Time
	cp      *controlplane.ControlPlane
	agent   *agent.Agent
	history *nodewatch.History // the administrator's view of the Node
}

func (s *stage) say(format string, args ...any) {
	fmt.Fprintf(s.Out, "%6.1fs  %s\n", time.Since(s.begin).Seconds(), fmt.Sprintf(format, args...))
}

func (s *stage) quote(text string) {
	text = strings.TrimRight(text, "\n")
	fmt.Fprintln(s.Out, "         │ "+strings.ReplaceAll(text, "\n", "\n         │ "))
}

func (s *stage) sleep(d time.Duration) { s.SleepBeside(s.agent.Exited(), d) }

func millis(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

func amount(l *pressure.Load, n int64) string {
	if l.Condition == corev1.NodePIDPressure {
		return fmt.Sprintf("%d PIDs", n)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

// play crosses a limit and lets go again. If whole, it prints all of the condition.
func (s *stage) play(l *pressure.Load, whole bool) (becameTrue, becameFalse time.Duration) {
	before := s.calm(l)
	fmt.Fprintln(s.Out)
	s.say("%s is %s, the limit %s; now for pressure, down to %s", l.Signal, amount(l, before), amount(l, l.Limit), amount(l, l.Left))

	// The limit is crossed on the way to the whole of the pressure.
	start := time.Now()
	pressed := make(chan error, 1)
	go func() { pressed <- l.Press() }()
	release := sync.OnceValue(func() error { return errors.Join(<-pressed, l.Release()) })
	// Whatever happens, the pressure ends before the demo does.
	s.Cleanup(func() { must.Note(s, release()) })
	at := s.watch(l, true)
	seen := s.see(start, l.Condition, corev1.ConditionTrue)
	becameTrue = max(0, seen.Sub(at))
	s.say("crossed at %s; %s is True at the API server at %s, %s later", at.Format(clock), l.Condition, seen.Format(clock), millis(becameTrue))
	if whole {
		s.quote(string(must.Get(yaml.Marshal(nodewatch.Condition(s.node(), l.Condition)))(s)))
	} else {
		s.conditions()
	}
	s.sleep(pace)

	start = time.Now()
	released := make(chan error, 1)
	go func() { released <- release() }()
	at = s.watch(l, false)
	seen = s.see(start, l.Condition, corev1.ConditionFalse)
	becameFalse = seen.Sub(at)
	s.say("released at %s; %s is False at %s, %s later (it is held for %s)", at.Format(clock), l.Condition, seen.Format(clock), millis(becameFalse), transition)
	must.OK(s, <-released)
	return becameTrue, becameFalse
}

// calm waits until the condition is False and its limit not crossed, and returns how
// much is available.
func (s *stage) calm(l *pressure.Load) int64 {
	for deadline := time.Now().Add(flipTimeout); ; s.sleep(100 * time.Millisecond) {
		available := must.Get(l.Available())(s)
		if available > l.Limit && nodewatch.Has(l.Condition, corev1.ConditionFalse)(s.node()) {
			return available
		}
		if time.Now().After(deadline) {
			s.Fatalf("%s is %s before anything was done: something else presses on this machine", l.Signal, amount(l, available))
		}
	}
}

// watch returns when less is available than the limit, or no longer. It looks
// every millisecond, so that what is measured is nodeprobe and not how long the
// pressure takes to build up and to go.
func (s *stage) watch(l *pressure.Load, less bool) time.Time {
	for deadline := time.Now().Add(flipTimeout); (must.Get(l.Available())(s) < l.Limit) != less; s.sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("%s did not cross %s within %s", l.Signal, amount(l, l.Limit), flipTimeout)
		}
	}
	return time.Now()
}

func (s *stage) see(since time.Time, condition corev1.NodeConditionType, status corev1.ConditionStatus) time.Time {
	ctx, cancel := context.WithTimeoutCause(s.Context(), flipTimeout, fmt.Errorf("%s did not become %s within %s", condition, status, flipTimeout))
	defer cancel()
	return must.Get(s.history.Wait(ctx, since, nodewatch.Has(condition, status)))(s).At
}

func (s *stage) conditions() {
	var parts []string
	for _, c := range s.node().Status.Conditions {
		parts = append(parts, fmt.Sprintf("%s=%s", c.Type, c.Status))
	}
	s.quote(strings.Join(parts, "  "))
}

func (s *stage) node() *corev1.Node {
	return must.Get(s.cp.Client().CoreV1().Nodes().Get(s.Context(), nodeName, metav1.GetOptions{}))(s)
}

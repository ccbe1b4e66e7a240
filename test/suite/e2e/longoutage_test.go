package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/fault"
	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

var outageLength = flag.Duration("outage", 20*time.Second, "how long the API server is away in TestLongOutage")

const (
	// nodeprobe gives memory back five seconds after the start, and again a minute
	// after the last call that failed.
	settles, settlesAgain = 7 * time.Second, 65 * time.Second
	// What an outage may cost in memory: parts of the program that are needed for
	// the first time (some 3.5 MiB of files), and garbage. Only what is anonymous can
	// grow for ever. Little may stay once it was given back.
	mayCost, mayCostAnon, mayStay = 8 << 20, 4 << 20, 3 << 19
)

// outage is an API server that goes away for long, and what happens meanwhile.
type outage struct {
	*node
	proxy   *fault.Proxy
	machine usage
	disk    *pressure.Filesystem
	agent   *agent.Agent

	flips   map[corev1.NodeConditionType]time.Time // by nodeprobe's log
	changes int                                    // so many lines it has there
	before  *corev1.Node
	began   time.Time
	killed  time.Time // a process
	back    time.Time // when it answers again
}

// The API server is away for long: at first nobody listens, and then nobody
// answers. nodeprobe costs no more meanwhile, and then tells with one patch what
// has happened, and when that was.
func TestLongOutage(t *testing.T) {
	t.Parallel()
	lease, watched, patient := 4*time.Second, 6*time.Second, *outageLength >= time.Minute
	config := agent.Config{
		"evictionPressureTransitionPeriod": "0s",
		"evictionHard":                     agent.Hard(map[string]string{"nodefs.available": "30%", "memory.available": "10%", "pid.available": "10%"}),
	}
	if patient { // as it is in a cluster
		lease, watched = 40*time.Second, time.Minute
		config["nodeStatusUpdateFrequency"] = "10s"
	}
	config["nodeLeaseDurationSeconds"] = int(lease.Seconds())
	o := &outage{machine: newUsage(t), flips: map[corev1.NodeConditionType]time.Time{}}
	o.node, o.disk = newFullableNode(t, controlplane.StartExclusive(t, controlplane.Options{AuditLog: true}), config)
	o.Spec.Args = o.machine.flags()
	o.proxy = o.Through()
	o.machine.tasks(1 << 30)
	o.agent = o.StartReady()
	o.WaitCondition(corev1.NodePIDPressure, corev1.ConditionTrue)
	o.changes = len(changed(t, o.agent))

	time.Sleep(settles)
	before := medians(o.watchFor(watched))
	o.before = o.MustGet()
	away, back := context.WithCancel(t.Context())
	defer back()
	seen := make(chan []vitals, 1)
	go func() { seen <- o.watch(away) }()
	o.play()
	back()
	outage := <-seen
	o.checkLease(lease)
	o.checkPatch()
	o.checkEvents()
	mayStayAfter := int64(mayCost)
	if patient {
		time.Sleep(time.Until(o.back.Add(settlesAgain)))
		mayStayAfter = mayStay
	}
	after := o.watchFor(watched)

	t.Logf("before: %v", before)
	for _, phase := range []struct {
		name  string
		looks []vitals
		most  int64 // more RSS than before
	}{
		{"in the first half of the outage", outage[:len(outage)/2], mayCost},
		{"in the second half", outage[len(outage)/2:], mayCost},
		{"after it", after, mayStayAfter},
	} {
		cost := medians(phase.looks)
		t.Logf("%s: %v", phase.name, cost)
		for what, most := range map[string]int64{"rss": phase.most, "anon": mayCostAnon, "goroutines": 4, "threads": 4, "open files": 4} {
			if more := cost[what] - before[what]; more > most {
				t.Errorf("%s: %d %s more than before, want %d at most", phase.name, more, what, most)
			}
		}
	}
	o.checkNothingTwice()
}

// play is the outage. Each condition has another story.
func (o *outage) play() {
	o.T.Helper()
	o.began = time.Now()
	must.OK(o.T, o.CP.StopAPIServer())
	o.proxy.Refuse()
	for _, step := range []struct {
		at     float64 // of the outage's length
		do     func()
		change string // that nodeprobe is to see
	}{
		{0.1, func() { must.OK(o.T, o.disk.Fill(full)) }, "DiskPressure True"},
		{0.2, func() { o.machine.tasks(100) }, "PIDPressure False"},
		{0.3, func() { must.OK(o.T, o.disk.Empty()) }, "DiskPressure False"},
		{0.35, func() { o.machine.killed(1); o.killed = time.Now() }, ""},
		{0.4, func() { o.machine.tasks(1 << 30) }, "PIDPressure True"},
		{0.5, func() { o.proxy.Inject(fault.Rule{Fault: fault.Hang()}); must.OK(o.T, o.proxy.Accept()) }, ""},
		{0.6, func() { o.machine.memory(1 << 50) }, "MemoryPressure True"},
		{0.8, func() { o.machine.tasks(100) }, "PIDPressure False"},
	} {
		time.Sleep(time.Until(o.began.Add(time.Duration(step.at * float64(*outageLength)))))
		step.do()
		if step.change != "" {
			o.waitChange(step.change)
		}
		must.Note(o.T, stage.Code(o.agent, "/livez", 200))
	}
	must.Note(o.T, stage.Code(o.agent, "/readyz", 503))
	time.Sleep(time.Until(o.began.Add(*outageLength)))
	must.OK(o.T, o.CP.StartAPIServer(o.T.Context()))
	o.proxy.Clear()
	o.back = time.Now()
	o.T.Logf("the API server was away for %s", o.back.Sub(o.began).Round(time.Second))
}

func (o *outage) waitChange(change string) {
	o.T.Helper()
	r := waitChanged(o.T, o.agent, o.changes)
	o.changes++
	condition, status, _ := strings.Cut(change, " ")
	if !strings.Contains(r.Line, fmt.Sprintf(`"condition":%q,"status":%q`, condition, status)) {
		o.T.Fatalf("want %s: %s", change, r.Line)
	}
	o.flips[corev1.NodeConditionType(condition)] = r.Time
}

// checkLease: the Lease is renewed again soon, and its times go forward.
func (o *outage) checkLease(lease time.Duration) {
	o.T.Helper()
	o.WaitRenewed(o.back)
	renewed := time.Since(o.back)
	o.WaitReady(o.agent)
	o.T.Logf("the lease is renewed %s after the API server is back, and nodeprobe ready after %s", renewed, time.Since(o.back))
	// A call that hangs has its deadline, 10 s at most, and the pause after it is
	// never longer than 7 s.
	interval := lease / 4
	if most := min(10*time.Second, lease) + 7*time.Second + 3*interval; renewed > most {
		o.T.Errorf("the lease is renewed only after %s, want %s at most", renewed, most)
	}
	time.Sleep(3 * interval)
	var last time.Time
	later := 0
	for _, e := range stage.Writes(o.T, o.CP, "nodeprobe", time.Time{}).Done().Of("update leases") {
		var lease coordinationv1.Lease
		must.OK(o.T, json.Unmarshal(e.RequestObject, &lease))
		if !lease.Spec.RenewTime.After(last) {
			o.T.Errorf("renewTime %s comes after %s", lease.Spec.RenewTime, last)
		}
		if last = lease.Spec.RenewTime.Time; last.After(o.back) {
			later++
		}
	}
	if later < 3 {
		o.T.Errorf("%d renewals since the API server is back", later)
	}
}

// checkPatch: one patch tells everything, with the times at which it happened.
func (o *outage) checkPatch() {
	o.T.Helper()
	patches := stage.Writes(o.T, o.CP, "nodeprobe", o.began).Done().Of("patch nodes/status")
	if len(patches) == 0 {
		o.T.Fatal("no patch")
	}
	o.T.Logf("the patch came %s after the API server is back: %s", patches[0].RequestReceivedTimestamp.Sub(o.back), patches[0].RequestObject)
	var patch struct {
		Status struct{ Conditions []map[string]any }
	}
	must.OK(o.T, json.Unmarshal(patches[0].RequestObject, &patch))
	got := o.MustGet()
	for _, c := range patch.Status.Conditions {
		kind := corev1.NodeConditionType(fmt.Sprint(c["type"]))
		is, was := nodewatch.Condition(got, kind), nodewatch.Condition(o.before, kind)
		want := map[corev1.NodeConditionType]corev1.ConditionStatus{
			corev1.NodeMemoryPressure: corev1.ConditionTrue, corev1.NodePIDPressure: corev1.ConditionFalse,
		}[kind]
		if want == "" { // what came and went is no change
			delete(c, "type")
			delete(c, "lastHeartbeatTime")
			if len(c) > 0 || is.Status != was.Status || !is.LastTransitionTime.Equal(&was.LastTransitionTime) {
				o.T.Errorf("%s was %+v, is %+v, patched with %v", kind, was, is, c)
			}
			continue
		}
		flip, at := o.flips[kind], is.LastTransitionTime.Time
		// The API has whole seconds; the log is written a moment after the sample.
		if is.Status != want || at.After(flip) || flip.Sub(at) > 2*time.Second {
			o.T.Errorf("%s is %s since %s; it is %s since %s", kind, is.Status, at, want, flip)
		}
	}
	// Those of our own are unchanged.
	if n := len(patch.Status.Conditions); n != len(got.Status.Conditions) {
		o.T.Errorf("%d conditions in the patch", n)
	}
}

// checkEvents: what has happened is told, and when.
func (o *outage) checkEvents() {
	o.T.Helper()
	posted := func() stage.Audit { return stage.Writes(o.T, o.CP, "nodeprobe", o.began).Done().About("events") }
	stage.Until(o.T, "the events are posted", func() bool { return len(posted()) >= 3 })
	for _, e := range posted() {
		var event corev1.Event
		must.OK(o.T, json.Unmarshal(e.RequestObject, &event))
		if event.Reason == "OOMKilling" && event.FirstTimestamp.Sub(o.killed) > *outageLength/4 {
			o.T.Errorf("the event says that it happened at %s, which was at %s", event.FirstTimestamp, o.killed)
		}
	}
}

// checkNothingTwice looks at the end of it all: nothing was told twice.
func (o *outage) checkNothingTwice() {
	o.T.Helper()
	all := stage.Writes(o.T, o.CP, "nodeprobe", o.began).Done()
	if patches := all.Of("patch nodes/status"); len(patches) != 1 {
		o.T.Errorf("%d patches: %+v", len(patches), patches)
	}
	// MemoryPressure, PIDPressure, the kill.
	if events := all.About("events"); len(events) != 3 || len(events.Of("create events")) != 3 || len(all.Of("create nodes")) != 0 {
		o.T.Errorf("written since the outage began: %+v", events)
	}
	if len(stage.Logged(o.T, o.agent, "node is registered")) != 1 {
		o.T.Error("the node was registered again")
	}
	if lines := stage.Logged(o.T, o.agent, ""); len(lines) > 60 {
		o.T.Errorf("%d lines in the log", len(lines))
	}
}

// vitals is what a process that leaks has more and more of: bytes of rss, anon and file,
// and how many goroutines, threads and open files.
type vitals map[string]int64

func readVitals(a *agent.Agent) (vitals, error) {
	s, err := footprint.Read(a.PID())
	goroutines, err2 := a.Metric(context.Background(), "go_goroutines")
	threads, err3 := os.ReadDir(fmt.Sprintf("/proc/%d/task", a.PID()))
	files, err4 := os.ReadDir(fmt.Sprintf("/proc/%d/fd", a.PID()))
	return vitals{
		"rss": s.RSS, "anon": s.RSSAnon, "file": s.RSSFile,
		"goroutines": int64(goroutines), "threads": int64(len(threads)), "open files": int64(len(files)),
	}, errors.Join(err, err2, err3, err4)
}

// watch looks at nodeprobe once a second until ctx ends.
func (o *outage) watch(ctx context.Context) (all []vitals) {
	for ctx.Err() == nil {
		v, err := readVitals(o.agent)
		if err != nil {
			o.T.Error(err)
			break
		}
		all = append(all, v)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	return all
}

func (o *outage) watchFor(d time.Duration) []vitals {
	ctx, stop := context.WithTimeout(o.T.Context(), d)
	defer stop()
	return o.watch(ctx)
}

func medians(looks []vitals) vitals {
	values := map[string][]int64{}
	for _, v := range looks {
		for name, n := range v {
			values[name] = append(values[name], n)
		}
	}
	median := vitals{}
	for name, all := range values {
		slices.Sort(all)
		median[name] = all[len(all)/2]
	}
	return median
}

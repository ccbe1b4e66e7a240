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
	"sync"
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
	// the first time, and garbage. Little of it may stay.
	mayCost, mayStay = 6 << 20, 3 << 19
)

// outage is an API server that goes away for long, and what happens meanwhile.
type outage struct {
	*node
	cp      *controlplane.ControlPlane
	proxy   *fault.Proxy
	machine usage
	disk    *pressure.Filesystem
	agent   *agent.Agent

	flips    map[corev1.NodeConditionType]time.Time // by nodeprobe's log
	changes  int                                    // so many lines it has there
	before   *corev1.Node
	began    time.Time
	killed   time.Time // a process
	back     time.Time // when it answers again
	interval time.Duration
}

// The API server is away for long: at first nobody listens, and then nobody
// answers. nodeprobe costs no more meanwhile, and then tells with one patch what
// has happened, and when that was.
func TestLongOutage(t *testing.T) {
	t.Parallel()
	lease := 4 * time.Second
	config := agent.Config{
		"evictionPressureTransitionPeriod": "0s", "nodeLeaseDurationSeconds": int(lease.Seconds()),
		"evictionHard": agent.Hard(map[string]string{"nodefs.available": "30%", "memory.available": "10%", "pid.available": "10%"}),
	}
	watched, patient := 6*time.Second, *outageLength >= time.Minute
	if patient { // as it is in a cluster
		lease, watched = 40*time.Second, time.Minute
		config = config.With(agent.Config{"nodeLeaseDurationSeconds": int(lease.Seconds()), "nodeStatusUpdateFrequency": "10s"})
	}
	o := &outage{
		cp: controlplane.StartExclusive(t, controlplane.Options{AuditLog: true}), machine: newUsage(t),
		flips: map[corev1.NodeConditionType]time.Time{}, interval: lease / 4,
	}
	o.node, o.disk = newFullableNode(t, o.cp, config)
	o.Spec.Args = o.machine.flags()
	o.proxy = o.Through()
	o.machine.tasks(1 << 30)
	o.agent = o.StartReady()
	o.WaitCondition(corev1.NodePIDPressure, corev1.ConditionTrue)
	o.changes = len(changed(t, o.agent))

	time.Sleep(settles)
	monitor, calm := watchVitals(t, o.agent), time.Now()
	time.Sleep(watched)
	o.before = o.MustGet()
	o.play()
	o.checkLease()
	o.checkPatch()
	o.checkEvents()
	mostAfter := int64(mayCost)
	if patient {
		time.Sleep(time.Until(o.back.Add(settlesAgain)))
		mostAfter = mayStay
	}
	after := time.Now()
	time.Sleep(watched)

	calmCost, most, looks := monitor.between(t, calm, o.began)
	t.Logf("before, medians of %d looks: %s", looks, calmCost)
	for tenth, part := o.began, *outageLength/10; part >= 10*time.Second && tenth.Before(o.back.Add(-part)); tenth = tenth.Add(part) {
		cost, _, _ := monitor.between(t, tenth, tenth.Add(part))
		t.Logf("from %s on: %s", tenth.Sub(o.began).Round(time.Second), cost)
	}
	for _, phase := range []struct {
		name     string
		from, to time.Time
		most     int64 // more RSS than before
	}{
		{"in the first half of the outage", o.began, o.began.Add(*outageLength / 2), mayCost},
		{"in the second half", o.began.Add(*outageLength / 2), o.back, mayCost},
		{"after it", after, time.Now(), mostAfter},
	} {
		cost, highest, looks := monitor.between(t, phase.from, phase.to)
		t.Logf("%s, %d looks: %s; at most %s", phase.name, looks, cost, highest)
		if more := cost["rss"] - calmCost["rss"]; more > phase.most {
			t.Errorf("%s RSS is %d KiB more than before", phase.name, more>>10)
		}
		for _, what := range counted {
			if cost[what] > most[what]+4 {
				t.Errorf("%s: %d %s, at most %d before", phase.name, cost[what], what, most[what])
			}
		}
	}
	checkNothingTwice(t, o)
}

// play is the outage. Each condition has another story.
func (o *outage) play() {
	o.T.Helper()
	o.began = time.Now()
	must.OK(o.T, o.cp.StopAPIServer())
	o.proxy.Refuse()
	for _, step := range []struct {
		at     float64 // of the outage's length
		do     func()
		change string // that nodeprobe is to see
	}{
		{0.1, func() { fill(o.T, o.disk) }, "DiskPressure True"},
		{0.2, func() { o.machine.tasks(100) }, "PIDPressure False"},
		{0.3, func() { empty(o.T, o.disk) }, "DiskPressure False"},
		{0.35, func() { o.machine.killed(1); o.killed = time.Now() }, ""},
		{0.4, func() { o.machine.tasks(1 << 30) }, "PIDPressure True"},
		{0.5, o.hang, ""},
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
	must.OK(o.T, o.cp.StartAPIServer(o.T.Context()))
	o.proxy.Clear()
	o.back = time.Now()
	o.T.Logf("the API server was away for %s", o.back.Sub(o.began).Round(time.Second))
}

func (o *outage) hang() {
	o.proxy.Inject(fault.Rule{Fault: fault.Hang()})
	must.OK(o.T, o.proxy.Accept())
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
func (o *outage) checkLease() {
	o.T.Helper()
	o.WaitRenewed(o.back)
	renewed := time.Since(o.back)
	o.WaitReady(o.agent)
	o.T.Logf("the lease is renewed %s after the API server is back, and nodeprobe ready after %s",
		renewed.Round(time.Millisecond), time.Since(o.back).Round(time.Millisecond))
	// A call that hangs has its deadline, 10 s at most, and the pause after it is
	// never longer than 7 s.
	if most := min(10*time.Second, 4*o.interval) + 7*time.Second + 3*o.interval; renewed > most {
		o.T.Errorf("the lease is renewed only after %s, want %s at most", renewed, most)
	}
	time.Sleep(3 * o.interval)
	var last time.Time
	renewals := stage.Writes(o.T, o.cp, "nodeprobe", time.Time{}).Of("update leases")
	later := 0
	for _, e := range renewals {
		var lease coordinationv1.Lease
		must.OK(o.T, json.Unmarshal(e.RequestObject, &lease))
		if e.ResponseStatus.Code != 200 {
			continue
		}
		if !lease.Spec.RenewTime.After(last) {
			o.T.Errorf("renewTime %s comes after %s", lease.Spec.RenewTime, last)
		}
		last = lease.Spec.RenewTime.Time
		if last.After(o.back) {
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
	patches := stage.Writes(o.T, o.cp, "nodeprobe", o.began).Done().Of("patch nodes/status")
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
		o.T.Logf("%s is %s since %s: changed at %s", kind, is.Status, at.UTC().Format(time.TimeOnly), flip.UTC().Format("15:04:05.000"))
	}
	// Those of our own are unchanged.
	if n := len(patch.Status.Conditions); n != len(got.Status.Conditions) {
		o.T.Errorf("%d conditions in the patch", n)
	}
}

// checkEvents: what has happened is told, once.
func (o *outage) checkEvents() {
	o.T.Helper()
	var told map[string]int
	stage.Eventually(o.T, "the events are posted", func() error {
		told = map[string]int{}
		for _, e := range stage.Writes(o.T, o.cp, "nodeprobe", o.began).Done() {
			if e.ObjectRef.Resource != "events" {
				continue
			}
			var event corev1.Event
			if err := json.Unmarshal(e.RequestObject, &event); err != nil {
				return err
			}
			told[event.Reason]++
			if at := event.FirstTimestamp.Time; event.Reason == "OOMKilling" && at.Sub(o.killed) > *outageLength/4 {
				o.T.Errorf("the event says that it happened at %s, which was at %s", at, o.killed)
			}
		}
		if len(told) < 3 {
			return fmt.Errorf("only %v", told)
		}
		return nil
	})
	o.T.Logf("events %s after the API server is back: %v", time.Since(o.back).Round(time.Millisecond), told)
}

// checkNothingTwice looks at the end of it all: nothing was told twice.
func checkNothingTwice(t *testing.T, o *outage) {
	t.Helper()
	all := stage.Writes(t, o.cp, "nodeprobe", o.began).Done()
	if patches := all.Of("patch nodes/status"); len(patches) != 1 {
		for _, p := range patches[1:] {
			t.Errorf("another patch at %s, %d: %s", p.RequestReceivedTimestamp, p.ResponseStatus.Code, p.RequestObject)
		}
	}
	count := map[string]int{}
	for _, e := range all {
		count[e.Verb+" "+e.ObjectRef.Resource]++
	}
	// MemoryPressure, PIDPressure, the kill.
	if count["create events"] != 3 || count["patch events"] != 0 || count["create nodes"] != 0 {
		t.Errorf("written since the outage began: %v", count)
	}
	if len(stage.Logged(t, o.agent, "node is registered")) != 1 {
		t.Error("the node was registered again")
	}
	if bad := stage.Logged(t, o.agent, ""); len(bad) > 60 {
		t.Errorf("%d lines in the log", len(bad))
	}
}

// vitals is what a process that leaks has more and more of: bytes of rss, anon and file,
// and how many goroutines, threads and open files.
type vitals map[string]int64

var counted = []string{"goroutines", "threads", "open files"}

func (v vitals) String() string {
	mib := func(name string) float64 { return float64(v[name]) / (1 << 20) }
	return fmt.Sprintf("RSS %.2f MiB (anonymous %.2f, files %.2f), %d goroutines, %d threads, %d open files",
		mib("rss"), mib("anon"), mib("file"), v["goroutines"], v["threads"], v["open files"])
}

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

// monitor looks at a process once a second.
type monitor struct {
	mu  sync.Mutex // guards the rest
	at  []time.Time
	all []vitals
	err error
}

func watchVitals(t *testing.T, a *agent.Agent) *monitor {
	m := &monitor{}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for t.Context().Err() == nil && m.err == nil {
			v, err := readVitals(a)
			m.mu.Lock()
			m.at, m.all, m.err = append(m.at, time.Now()), append(m.all, v), err
			m.mu.Unlock()
			select {
			case <-time.After(time.Second):
			case <-t.Context().Done():
			case <-a.Exited():
			}
		}
	}()
	t.Cleanup(func() { <-ended })
	return m
}

// between returns the medians and the largest of each figure over a time, and how
// many looks there were.
func (m *monitor) between(t *testing.T, from, to time.Time) (median, most vitals, looks int) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	must.OK(t, m.err)
	values := map[string][]int64{}
	for i, v := range m.all {
		if m.at[i].After(from) && m.at[i].Before(to) {
			looks++
			for name, n := range v {
				values[name] = append(values[name], n)
			}
		}
	}
	if looks == 0 {
		t.Fatalf("nobody has looked between %s and %s", from, to)
	}
	median, most = vitals{}, vitals{}
	for name, all := range values {
		slices.Sort(all)
		median[name], most[name] = all[looks/2], all[looks-1]
	}
	return median, most, looks
}

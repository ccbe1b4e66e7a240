// Package flap has values dance around their limits on a real kernel, and counts
// what nodeprobe makes of it: events, samples, patches. Its tests are in
// "make test-flap".
package flap

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
)

// stage is nodeprobe in mode own, an API server that keeps a record, and the
// dancers.
type stage struct {
	t          *testing.T
	name       string
	cp         *controlplane.ControlPlane
	agent      *agent.Agent
	dancers    []*dancer
	transition time.Duration
	history    *nodewatch.History
	truth      *recorder
}

func newStage(t *testing.T, config agent.Config) *stage {
	t.Helper()
	cp := controlplane.StartExclusive(t, controlplane.Options{AuditLog: true})
	binary := build.ProductForTest(t) // before there are limits: a compiler needs memory that will be back
	s := &stage{t: t, cp: cp, name: controlplane.ObjectName(t), dancers: newDancers(t)}
	var err error
	s.transition = must.Get(time.ParseDuration(config["evictionPressureTransitionPeriod"].(string)))(t)
	limits := map[string]string{}
	for _, d := range s.dancers {
		limits[d.signal] = strconv.FormatInt(d.limit, 10)
	}
	kubeconfig := must.Get(cp.NodeKubeconfig(s.name))(t)
	s.history = nodewatch.FollowForTest(t, cp.Client(), s.name)
	s.agent, err = agent.Start(t.Context(), agent.Spec{
		Binary: binary, Dir: t.TempDir(), NodeName: s.name, Kubeconfig: kubeconfig,
		Config: agent.Own().With(agent.Config{
			"bpf": "auto", "sampleInterval": "10s", "evictionHard": agent.Hard(limits), "logLevel": "debug",
			"enforceNodeAllocatable": []string{}, // or else there is a limit that the kernel does not watch
			"rootDirectory":          s.dancer("nodefs.available").dir,
			"imageDirectories":       []string{s.dancer("imagefs.inodesFree").dir},
		}).With(config),
	})
	must.OK(t, err)
	t.Cleanup(func() {
		s.agent.Stop()
		if t.Failed() {
			s.logEvents(40)
		}
	})
	for _, d := range s.dancers {
		capacity := s.metrics()[fmt.Sprintf("nodeprobe_signal_capacity_%s{signal=%q}", d.unit, d.signal)]
		d.band = min(d.limit/10, int64(capacity)/100)
	}
	for _, l := range s.log() {
		if l.Msg == "limits in the kernel" && l.Polled != "" {
			need.Skip(t, "the kernel cannot watch "+l.Polled)
		}
	}
	s.truth = record(s.dancers)
	t.Cleanup(s.truth.stop)
	return s
}

func (s *stage) dancer(signal string) *dancer {
	for _, d := range s.dancers {
		if d.signal == signal {
			return d
		}
	}
	panic(signal)
}

func (s *stage) stop() {
	s.truth.stop()
	s.agent.Stop()
}

func (s *stage) metrics() map[string]float64 {
	s.t.Helper()
	return must.Get(s.agent.Metrics(s.t.Context()))(s.t)
}

// line is a line of the agent's log: what there is of all lines that matter.
type line struct {
	Time                     time.Time
	Msg, Kind                string
	Watch                    int
	Watched, Polled          string
	Condition, Status, Level string
}

func (s *stage) log() []line {
	s.t.Helper()
	var lines []line
	for _, r := range s.records() {
		var l line
		if json.Unmarshal([]byte(r.Line), &l) == nil {
			lines = append(lines, l)
		}
	}
	return lines
}

func (s *stage) records() []agent.Record {
	s.t.Helper()
	return must.Get(s.agent.Log())(s.t)
}

func (s *stage) logEvents(n int) {
	var last []string
	for _, r := range s.records() {
		if r.Msg == "kernel event" || r.Msg == "condition changed" || r.Level == "WARN" {
			last = append(last, r.Line)
		}
	}
	s.t.Logf("nodeprobe's last lines:\n%s", strings.Join(last[max(0, len(last)-n):], "\n"))
}

// events counts the crossings that the kernel reported, by signal.
func (s *stage) events(begin, end time.Time) map[string]int {
	s.t.Helper()
	counts := map[string]int{}
	var watched []string
	for _, l := range s.log() {
		switch {
		case l.Msg == "limits in the kernel":
			watched = strings.Fields(l.Watched)
		case l.Msg == "kernel event" && l.Kind == "crossing" && l.Time.After(begin) && l.Time.Before(end):
			signal, _, _ := strings.Cut(watched[l.Watch], "<")
			counts[signal]++
		}
	}
	return counts
}

func (s *stage) ended(begin, end time.Time) (n int) {
	s.t.Helper()
	for _, l := range s.log() {
		if l.Msg == "condition changed" && l.Status == string(corev1.ConditionFalse) && l.Time.After(begin) && l.Time.Before(end) {
			n++
		}
	}
	return n
}

// patches returns when the API server got patches of the Node's status.
func (s *stage) patches(begin, end time.Time) []time.Time {
	s.t.Helper()
	events := must.Get(s.cp.AuditEvents())(s.t)
	var times []time.Time
	for _, e := range events {
		ours := e.Verb == "patch" && e.ObjectRef.Resource == "nodes" && e.ObjectRef.Name == s.name
		if ours && e.RequestReceivedTimestamp.After(begin) && e.RequestReceivedTimestamp.Before(end) {
			times = append(times, e.RequestReceivedTimestamp)
		}
	}
	return times
}

func (s *stage) node() *corev1.Node {
	s.t.Helper()
	return cmp.Or(s.history.Last(), &corev1.Node{})
}

func (s *stage) haveConditions(want map[corev1.NodeConditionType]corev1.ConditionStatus) bool {
	node := s.node()
	for condition, status := range want {
		if !nodewatch.Has(condition, status)(node) {
			return false
		}
	}
	return true
}

func (s *stage) conditions() string {
	var parts []string
	for _, c := range s.node().Status.Conditions {
		parts = append(parts, fmt.Sprintf("%s=%s since %s", c.Type, c.Status, c.LastTransitionTime.Format(metav1.RFC3339Micro)))
	}
	return strings.Join(parts, ", ")
}

// denials returns, by dancer, for how long at most its value was under its limit
// and nodeprobe said False.
func (s *stage) denials() map[string]time.Duration {
	s.t.Helper()
	said := map[string][]verdict{}
	for _, l := range s.log() {
		if l.Msg == "condition changed" {
			said[l.Condition] = append(said[l.Condition], verdict{l.Time, l.Status == string(corev1.ConditionTrue)})
		}
	}
	longest := map[string]time.Duration{}
	for i, d := range s.dancers {
		// Two readings of one value at almost the same time differ by some.
		longest[d.signal] = longestDenial(s.truth.readings[i], d.limit-d.reach/16, said[string(d.condition)])
	}
	return longest
}

// passages counts what the value of a dancer really did.
func (s *stage) passages(i int, begin, end time.Time) int {
	var truth []reading
	for _, r := range s.truth.copy(i) {
		if r.at.After(begin) && r.at.Before(end) {
			truth = append(truth, r)
		}
	}
	// It need not have come all the way for the kernel, which looks at other
	// counters, to take it so.
	d := s.dancers[i]
	return passages(truth, d.limit, d.limit+d.band-d.reach/16)
}

// lastUnder returns when the value of a dancer was last under its limit.
func (s *stage) lastUnder(i int) time.Time {
	for _, r := range slices.Backward(s.truth.copy(i)) {
		if r.value < s.dancers[i].limit {
			return r.at
		}
	}
	return time.Time{}
}

// recorder reads all values all the time.
type recorder struct {
	mu       sync.Mutex
	readings [][]reading // of each dancer
	stop     func()
}

// readEvery is short enough to see what lasts, and long enough to leave the
// machine to the dance.
const readEvery = 5 * time.Millisecond

func record(dancers []*dancer) *recorder {
	ctx, cancel := context.WithCancel(context.Background())
	r := &recorder{readings: make([][]reading, len(dancers))}
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			for i, d := range dancers {
				if value, err := d.available(); err == nil {
					r.mu.Lock()
					r.readings[i] = append(r.readings[i], reading{time.Now(), value})
					r.mu.Unlock()
				}
			}
			time.Sleep(readEvery)
		}
	})
	r.stop = sync.OnceFunc(func() {
		cancel()
		done.Wait()
	})
	return r
}

func (r *recorder) copy(i int) []reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]reading(nil), r.readings[i]...)
}

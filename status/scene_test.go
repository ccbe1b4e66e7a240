package status

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// scene is an Updater at work in a synctest bubble, with everything around it. It is
// its own content: three pressure conditions and Ready.
type scene struct {
	*Updater
	t    *testing.T
	api  *apitest.API
	logs *apitest.Log

	mu        sync.Mutex // guards the rest
	pressures []Condition
	unhealthy error
	sick      bool      // as last observed
	since     time.Time // when that changed
	noFacts   bool
	urgent    bool
	stuck     chan struct{} // no Draft returns before it is closed; nil is closed
}

func newScene(t *testing.T) *scene {
	s := &scene{t: t, api: &apitest.API{}, logs: &apitest.Log{}}
	for _, kind := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		s.pressures = append(s.pressures, Condition{
			Type: string(kind), Status: v1.ConditionFalse, Reason: "No" + string(kind), Message: "all is well", Since: time.Now(),
		})
	}
	return s
}

func (s *scene) config() Config {
	return Config{
		NodeName: apitest.NodeName, Nodes: s.api, Timeout: 10 * time.Second,
		Content: s, Registrar: s,
		Adopt:           func(n *v1.Node) { s.api.Note("ADOPT", n.ResourceVersion) },
		OnFailure:       func() { s.api.Note("FAILURE", "") },
		UpdateFrequency: 10 * time.Second, ReportFrequency: 5 * time.Minute, RetryRefused: true,
		Logger: slog.New(slog.NewTextHandler(s.logs, nil)),
	}
}

// registered are the labels that registration owns.
var registered = map[string]string{v1.LabelHostname: apitest.NodeName, v1.LabelInstanceTypeStable: "m1"}

var errNoFacts = errors.New("no sample of the machine yet")

func (s *scene) Initial(_ context.Context, now time.Time) (*v1.Node, []Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noFacts {
		return nil, nil, errNoFacts
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: apitest.NodeName, Labels: maps.Clone(registered)}}
	node.Labels["foo"] = "bar"
	s.set(node, now)
	return node, nil, nil
}

func (s *scene) Mend(existing, initial *v1.Node) (*v1.Node, bool) {
	mended := existing.DeepCopy()
	if mended.Labels == nil {
		mended.Labels = map[string]string{}
	}
	for name := range registered {
		mended.Labels[name] = initial.Labels[name]
	}
	return mended, !maps.Equal(mended.Labels, existing.Labels)
}

func (s *scene) ObserveHealth(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observe(now)
}

func (s *scene) observe(now time.Time) {
	if sick := s.unhealthy != nil; s.since.IsZero() || sick != s.sick {
		s.sick, s.since = sick, now
	}
}

func (s *scene) Draft(_ context.Context, old *v1.Node, now time.Time, _ bool) Draft {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stuck != nil {
		<-s.stuck
	}
	next := old.DeepCopy()
	s.observe(now)
	s.set(next, now)
	return Draft{
		Changed: !apiequality.Semantic.DeepEqual(withoutHeartbeats(old), withoutHeartbeats(next)), Urgent: s.urgent,
		Worse: Worse(old.Status.Conditions, next.Status.Conditions),
		Patch: func() ([]byte, error) { return Patch(old, next) },
	}
}

func (s *scene) set(node *v1.Node, now time.Time) {
	ready := Condition{Type: string(v1.NodeReady), Status: v1.ConditionTrue, Reason: "Ready", Message: "all is well", Since: s.since}
	if s.unhealthy != nil {
		ready.Status, ready.Reason, ready.Message = v1.ConditionFalse, "NotReady", s.unhealthy.Error()
	}
	for _, c := range append(slices.Clone(s.pressures), ready) {
		kind := v1.NodeConditionType(c.Type)
		if lastCondition(node, kind) == nil {
			node.Status.Conditions = append(node.Status.Conditions, v1.NodeCondition{Type: kind})
		}
		is := lastCondition(node, kind)
		if is.Status != c.Status {
			is.LastTransitionTime = TransitionTime(c.Since, is.LastTransitionTime, now)
		}
		is.Status, is.Reason, is.Message, is.LastHeartbeatTime = c.Status, c.Reason, c.Message, metav1.NewTime(now)
	}
}

// withoutHeartbeats returns the conditions by type.
func withoutHeartbeats(node *v1.Node) []v1.NodeCondition {
	conditions := slices.Clone(node.Status.Conditions)
	for i := range conditions {
		conditions[i].LastHeartbeatTime.Reset()
	}
	slices.SortFunc(conditions, func(a, b v1.NodeCondition) int { return cmp.Compare(a.Type, b.Type) })
	return conditions
}

// judge is what an evaluator does when a condition changes: it wakes the Updater.
func (s *scene) judge(kind v1.NodeConditionType, is bool) {
	s.mu.Lock()
	for i := range s.pressures {
		if c := &s.pressures[i]; c.Type == string(kind) {
			c.Status, c.Reason, c.Message, c.Since = v1.ConditionFalse, "No"+c.Type, "all is well", time.Now()
			if is {
				c.Status, c.Reason, c.Message = v1.ConditionTrue, c.Type, "there is pressure"
			}
		}
	}
	s.mu.Unlock()
	s.Wake()
}

// vouch sets why this process cannot vouch for the node.
func (s *scene) vouch(unhealthy error) {
	s.mu.Lock()
	s.unhealthy = unhealthy
	s.mu.Unlock()
	s.Wake()
}

// play runs the Updater until act returns; see apitest.Play.
func (s *scene) play(cfg Config, act func()) {
	s.t.Helper()
	var err error
	if s.Updater, err = New(cfg); err != nil {
		s.t.Fatal(err)
	}
	apitest.Play(s.t, s.api, s.logs, s.Run, act)
}

// steady runs the Updater as play does, and begins once it has registered the
// Node and posted its first status.
func (s *scene) steady(cfg Config, act func()) {
	s.t.Helper()
	s.play(cfg, func() {
		s.t.Helper()
		s.sleep(time.Second)
		s.api.Took(s.t, "start", "POST PATCH")
		if err := s.Ready(); err != nil {
			s.t.Errorf("not ready: %v", err)
		}
		act()
	})
}

func (s *scene) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// condition returns one of the server's conditions, without the heartbeat.
func (s *scene) condition(kind v1.NodeConditionType) v1.NodeCondition {
	s.t.Helper()
	if c := lastCondition(s.api.Current(), kind); c != nil {
		c.LastHeartbeatTime.Reset()
		return *c
	}
	s.t.Fatalf("no condition %s", kind)
	return v1.NodeCondition{}
}

// contentFunc is a content whose conditions are those of a function.
type contentFunc func() []Condition

func (f contentFunc) Draft(ctx context.Context, old *v1.Node, now time.Time, due bool) Draft {
	c := NewConditions("")
	c.Set(f())
	return c.Draft(ctx, old, now, due)
}

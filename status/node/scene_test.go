package node

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// scene is an Updater at work on a Content in a synctest bubble, with everything around
// them. Facts are observed before each use, as of the present.
type scene struct {
	*status.Updater
	content *Content
	t       *testing.T
	api     *apitest.API
	logs    *apitest.Log
	events  *apitest.Events

	mu        sync.Mutex // guards the rest
	verdicts  [pressure.NumConditions]pressure.Verdict
	unhealthy error
	unready   error // of the container runtime
	noSample  bool
	change    func(*Facts) // of the facts; nil changes nothing
}

func newScene(t *testing.T) *scene {
	s := &scene{t: t, api: &apitest.API{}, logs: &apitest.Log{}, events: &apitest.Events{}}
	s.verdicts = machineFacts(time.Now()).Verdicts
	return s
}

// config is what is posted; play and steady make the rest.
func (s *scene) config() Config {
	return Config{
		NodeName: apitest.NodeName, Addresses: testAddresses(), Resources: testResources(),
		KubeletVersion: "v1.36.3", Port: 10250,
		Healthy:       func() error { s.mu.Lock(); defer s.mu.Unlock(); return s.unhealthy },
		RuntimeErrors: func() error { s.mu.Lock(); defer s.mu.Unlock(); return s.unready },
	}
}

// present observes the facts whenever the Content is used.
type present struct {
	*Content
	s *scene
}

func (p present) Draft(ctx context.Context, old *v1.Node, now time.Time, due bool) status.Draft {
	p.s.observe()
	return p.Content.Draft(ctx, old, now, due)
}

func (p present) Initial(ctx context.Context, now time.Time) (*v1.Node, []status.Event, error) {
	p.s.observe()
	return p.Content.Initial(ctx, now)
}

func (s *scene) observe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noSample {
		return
	}
	f := machineFacts(time.Now())
	f.Verdicts = s.verdicts
	if s.change != nil {
		s.change(&f)
	}
	s.content.Observe(f)
}

// facts sets how the facts differ from those of a healthy machine.
func (s *scene) facts(change func(*Facts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change = change
}

// judge is what the evaluator does when a condition changes: it wakes the Updater.
func (s *scene) judge(c pressure.Condition, is bool) {
	s.mu.Lock()
	s.verdicts[c].Status, s.verdicts[c].Since = pressure.False, time.Now()
	if is {
		s.verdicts[c].Status = pressure.True
	}
	s.mu.Unlock()
	s.Wake()
}

// play runs the Updater until act returns; see apitest.Play.
func (s *scene) play(cfg Config, act func()) {
	s.t.Helper()
	s.content = New(cfg)
	content := present{s.content, s}
	var err error
	s.Updater, err = status.New(status.Config{
		NodeName: apitest.NodeName, Nodes: s.api, Timeout: 10 * time.Second,
		Content: content, Registrar: content, Record: s.events.Record,
		Adopt:           func(n *v1.Node) { s.api.Note("ADOPT", n.ResourceVersion) },
		OnFailure:       func() { s.api.Note("FAILURE", "") },
		UpdateFrequency: 10 * time.Second, ReportFrequency: 5 * time.Minute, RetryRefused: true,
		Logger: slog.New(slog.NewTextHandler(s.logs, nil)),
	})
	if err != nil {
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
	node := s.api.Current()
	if c := condition(node, kind); c != nil {
		found := *c
		found.LastHeartbeatTime.Reset()
		return found
	}
	s.t.Fatalf("no condition %s", kind)
	return v1.NodeCondition{}
}

// initial returns the Node that a Content would create at Epoch.
func initial(t *testing.T, cfg Config, facts *Facts) *v1.Node {
	t.Helper()
	c := New(cfg)
	c.Observe(*facts)
	node, _, err := c.Initial(t.Context(), apitest.Epoch)
	if err != nil {
		t.Fatal(err)
	}
	return node
}

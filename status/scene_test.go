package status

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// scene is an Updater at work in a synctest bubble, with everything around it.
type scene struct {
	*Updater
	t    *testing.T
	api  *fakeAPI
	logs *logLines

	mu        sync.Mutex // guards the rest
	verdicts  [pressure.NumConditions]pressure.Verdict
	unhealthy error
	noSample  bool
}

func newScene(t *testing.T) *scene {
	s := &scene{t: t, api: &fakeAPI{}, logs: &logLines{}}
	s.verdicts = machineFacts(time.Now()).Verdicts
	return s
}

func (s *scene) config() Config {
	return Config{
		NodeName: nodeName, Nodes: s.api, Timeout: 10 * time.Second,
		Facts:     s.facts,
		Adopt:     func(n *v1.Node) { s.api.note("ADOPT", n.ResourceVersion) },
		OnFailure: func() { s.api.note("FAILURE", "") },
		Register:  true, Addresses: testAddresses(), Resources: testResources(),
		KubeletVersion: "v1.36.3", Port: 10250,
		UpdateFrequency: 10 * time.Second, ReportFrequency: 5 * time.Minute,
		Logger: slog.New(slog.NewTextHandler(s.logs, nil)),
	}
}

func (s *scene) facts() Facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noSample {
		return Facts{}
	}
	f := machineFacts(time.Now())
	f.Verdicts, f.Unhealthy = s.verdicts, s.unhealthy
	return f
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

// vouch says why this process cannot vouch for the node, as the monitor does.
func (s *scene) vouch(unhealthy error) {
	s.mu.Lock()
	s.unhealthy = unhealthy
	s.mu.Unlock()
	s.Wake()
}

// play runs the Updater until act returns. It checks that Run then ends at once
// with the cause; the bubble checks that no goroutine is left.
func (s *scene) play(cfg Config, act func()) {
	s.t.Helper()
	var err error
	if s.Updater, err = New(cfg); err != nil {
		s.t.Fatal(err)
	}
	cause := errors.New("stop")
	ctx, cancel := context.WithCancelCause(s.t.Context())
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	act()
	synctest.Wait()
	select {
	case err := <-done:
		s.t.Fatalf("Run returned early: %v", err)
	default:
	}
	s.api.take()
	cancel(cause)
	stopped := time.Now()
	if err := <-done; !errors.Is(err, cause) {
		s.t.Errorf("Run returned %v, want the cause %v", err, cause)
	}
	if late := time.Since(stopped); late > 0 {
		s.t.Errorf("Run returned %v after the cancellation", late)
	}
	for _, c := range s.api.take() {
		if c.at.After(stopped) {
			s.t.Errorf("%s after the cancellation", c.verb)
		}
	}
	if lines := s.logs.with("cancel", "stop"); len(lines) > 0 {
		s.t.Errorf("the end was logged as an error: %q", lines)
	}
}

// steady runs the Updater as play does, and begins once it has registered the
// Node and posted its first status.
func (s *scene) steady(cfg Config, act func()) {
	s.t.Helper()
	s.play(cfg, func() {
		s.t.Helper()
		s.sleep(time.Second)
		s.api.took(s.t, "start", "POST PATCH")
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
	node := s.api.current()
	if c := condition(node, kind); c != nil {
		found := *c
		found.LastHeartbeatTime.Reset()
		return found
	}
	s.t.Fatalf("no condition %s", kind)
	return v1.NodeCondition{}
}

// logLines keeps what is logged.
type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, line, _ := strings.Cut(strings.TrimSpace(string(p)), " ") // without the time
	l.lines = append(l.lines, line)
	return len(p), nil
}

// with returns the lines since the last call that hold any of the words.
func (l *logLines) with(words ...string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		for _, word := range words {
			if strings.Contains(line, word) {
				found = append(found, line)
				break
			}
		}
	}
	l.lines = nil
	return found
}

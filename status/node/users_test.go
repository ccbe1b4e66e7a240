package node

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// panics is a setter with a name.
func panics(_ context.Context, n *v1.Node) error {
	n.Labels["example.com/half"] = "done"
	panic("index out of range")
}

// label returns a setter of a label.
func label(name string) Setter {
	return func(_ context.Context, n *v1.Node) error { n.Labels[name] = "yes"; return nil }
}

// A setter that panics is an error that names it. What it has done is dropped, and
// everything else is posted.
func TestSetterThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg := s.config()
		cfg.Setters = []Setter{label("example.com/before"), panics, label("example.com/after")}
		s.steady(cfg, func() {
			s.judge(pressure.MemoryPressure, true)
			s.api.Took(t, "a change", "PATCH")
			apitest.Diff(t, "condition", v1.ConditionTrue, s.condition(v1.NodeMemoryPressure).Status)
			labels := s.api.Current().Labels
			if labels["example.com/before"] != "yes" || labels["example.com/after"] != "yes" || labels["example.com/half"] != "" {
				t.Errorf("labels %v", labels)
			}
			s.sleep(time.Minute)
			lines := s.logs.With("could")
			want := "setter github.com/nodeprobe/nodeprobe/status/node.panics panicked: index out of range"
			if len(lines) != 1 || !strings.Contains(lines[0], want) {
				t.Errorf("logged %q, want one line with %q", lines, want)
			}
		})
	})
}

// A setter that hangs, whatever its context says, costs what it would have set: the rest
// is posted within the bound, a change after that at once, and there is one goroutine
// however many passes there are. What comes late is dropped, and the setter is called
// again once it has returned.
func TestSetterThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg := s.config()
		gate := make(chan struct{})
		var calls atomic.Int32
		hangs := func(_ context.Context, n *v1.Node) error {
			call := calls.Add(1)
			<-gate
			n.Labels["example.com/hangs"] = fmt.Sprint(call)
			return nil
		}
		cfg.Setters = []Setter{label("example.com/before"), hangs, label("example.com/after")}
		s.play(cfg, func() {
			s.sleep(20 * time.Second)
			calls1 := s.api.Take()
			if apitest.Verbs(calls1) != "POST PATCH" || calls1[0].At.Sub(apitest.Epoch) > cfg.Timeout+10*time.Second {
				t.Fatalf("calls %v, want the Node within the bound", calls1)
			}
			labels := s.api.Current().Labels
			if labels["example.com/before"] != "yes" || labels["example.com/after"] != "yes" || labels["example.com/hangs"] != "" {
				t.Errorf("labels %v", labels)
			}
			start := time.Now()
			goroutines := runtime.NumGoroutine()
			for i := range 10 {
				s.judge(pressure.MemoryPressure, i%2 == 0)
				s.sleep(15 * time.Second)
			}
			for i, c := range s.api.Take() {
				if c.Verb == "PATCH" && c.At.Sub(start)%(15*time.Second) != 0 {
					t.Errorf("call %d is %v late", i, c.At.Sub(start)%(15*time.Second))
				}
			}
			apitest.Diff(t, "calls of the setter", int32(1), calls.Load())
			if more := runtime.NumGoroutine() - goroutines; more > 2 {
				t.Errorf("%d more goroutines", more)
			}
			lines := s.logs.With("could")
			if len(lines) != 1 || !strings.Contains(lines[0], "TestSetterThatHangs") || !strings.Contains(lines[0], "no answer within") {
				t.Errorf("logged %q, want one line that names the setter", lines)
			}
			close(gate)
			s.sleep(time.Minute)
			apitest.Diff(t, "what came late", true, s.api.Current().Labels["example.com/hangs"] != "1")
			if calls.Load() < 2 || s.api.Current().Labels["example.com/hangs"] == "" {
				t.Errorf("%d calls, labels %v: it has returned", calls.Load(), s.api.Current().Labels)
			}
			if lines := s.logs.With("could"); len(lines) != 1 || !strings.Contains(lines[0], "level=INFO") {
				t.Errorf("logged %q", lines)
			}
		})
	})
}

// However many setters hang, a pass takes no longer than the timeout. One that minds its
// context can say so by itself.
func TestSettersShareTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := func(ctx context.Context, _ *v1.Node) error { time.Sleep(time.Hour); return nil }
		minds := func(ctx context.Context, _ *v1.Node) error {
			select {
			case <-ctx.Done():
			case <-time.After(time.Hour):
			}
			return fmt.Errorf("ask the driver: %w", ctx.Err())
		}
		c := New(Config{
			Addresses: testAddresses(), Resources: testResources(), Timeout: 8 * time.Second,
			Setters: []Setter{hangs, hangs, hangs, minds, hangs, label("example.com/last")},
		})
		c.Observe(machineFacts(apitest.Epoch))
		for _, most := range []time.Duration{8 * time.Second, 4*time.Second + 1} {
			start := time.Now()
			node, _, err := c.Initial(t.Context(), start)
			if took := time.Since(start); took > most {
				t.Errorf("it takes %v, want at most %v", took, most)
			}
			apitest.Diff(t, "the last setter", "yes", node.Labels["example.com/last"])
			if got := strings.Count(apitest.ErrorText(err), "no answer within"); got < 4 {
				t.Errorf("%d setters are late, want 4 or 5: %v", got, err)
			}
		}
		time.Sleep(2 * time.Hour)
	})
}

// Who has less time than the timeout, as at the end of a process, is not kept longer; and
// once ctx has ended, at most by the setter that is under way.
func TestSettersEndWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := func(context.Context, *v1.Node) error { time.Sleep(time.Hour); return nil }
		take := func(ctx context.Context) time.Duration {
			c := New(Config{
				Addresses: testAddresses(), Resources: testResources(), Timeout: 8 * time.Second,
				Setters: []Setter{hangs, hangs, hangs},
			})
			c.Observe(machineFacts(apitest.Epoch))
			start := time.Now()
			_, _, _ = c.Initial(ctx, start)
			return time.Since(start)
		}
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if took := take(short); took > time.Second {
			t.Errorf("it takes %v of the second there is", took)
		}
		ended, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, stop)
		apitest.Diff(t, "time with a ctx that ends meanwhile", 4*time.Second, take(ended))
		time.Sleep(2 * time.Hour)
	})
}

// What a setter has changed before it returned an error is kept, and it is tried again.
func TestSetterThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg := s.config()
		var calls atomic.Int32
		cfg.Setters = []Setter{func(_ context.Context, n *v1.Node) error {
			n.Labels["example.com/half"] = "done"
			if calls.Add(1) < 5 {
				return errors.New("the driver does not answer")
			}
			n.Labels["example.com/half"] = "all"
			return nil
		}}
		s.steady(cfg, func() {
			apitest.Diff(t, "label", "done", s.api.Current().Labels["example.com/half"])
			s.sleep(time.Minute)
			apitest.Diff(t, "label", "all", s.api.Current().Labels["example.com/half"])
		})
	})
}

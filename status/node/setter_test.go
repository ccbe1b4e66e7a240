package node

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// What a user's setter does to labels and annotations is posted by the pass that
// finds it, and only once.
func TestMetadataOfASetter(t *testing.T) {
	for name, of := range map[string]func(*v1.Node) map[string]string{
		"labels":      func(n *v1.Node) map[string]string { return n.Labels },
		"annotations": func(n *v1.Node) map[string]string { return n.Annotations },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				cfg := s.config()
				var rack atomic.Value
				rack.Store("")
				cfg.Setters = []Setter{func(_ context.Context, n *v1.Node) error {
					if rack := rack.Load().(string); rack != "" {
						of(n)["rack"] = rack
						return nil
					}
					delete(of(n), "rack")
					return nil
				}}
				s.steady(cfg, func() {
					for _, value := range []string{"r7", "r8", ""} {
						s.sleep(25 * time.Second)
						s.api.Took(t, "idle", "")
						rack.Store(value)
						s.sleep(10 * time.Second)
						s.api.Took(t, name+" are set to "+value, "PATCH")
						if got, ok := of(s.api.Current())["rack"]; got != value || ok != (value != "") {
							t.Errorf("rack is %q, want %q", got, value)
						}
					}
				})
			})
		})
	}
}

// A setter that is overruled by a built-in one has changed nothing in the end.
func TestMetadataThatIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg := s.config()
		cfg.Setters = []Setter{func(_ context.Context, n *v1.Node) error {
			delete(n.Labels, v1.LabelOSStable) // registration puts it there, and so does each pass
			return nil
		}}
		s.steady(cfg, func() {
			s.sleep(time.Minute)
			s.api.Took(t, "without the label", "")
		})
	})
}

// What the status endpoint does not write is logged, and keeps nothing else from
// being posted.
func TestSetterOfWhatIsNotWritten(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*v1.Node)
		logged string
	}{
		"spec": {
			func(n *v1.Node) {
				n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: "k", Effect: v1.TaintEffectNoSchedule})
			},
			"a setter changes spec, which is written when the Node is created and never after",
		},
		"metadata": {
			func(n *v1.Node) { n.Finalizers = append(n.Finalizers, "example.com/f") },
			"a setter changes metadata other than labels and annotations, which is not written",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				cfg := s.config()
				var now atomic.Bool
				cfg.Setters = []Setter{func(_ context.Context, n *v1.Node) error {
					if now.Load() {
						test.change(n)
						n.Status.Phase = v1.NodeRunning // which no built-in setter sets
					}
					return nil
				}}
				s.steady(cfg, func() {
					now.Store(true)
					s.sleep(time.Minute)
					s.api.Took(t, "changed", "PATCH")
					if lines := s.logs.With("setter changes"); len(lines) != 1 || !strings.Contains(lines[0], test.logged) {
						t.Errorf("logged: %q", lines)
					}
					apitest.Diff(t, "what the setter set besides", v1.NodeRunning, s.api.Current().Status.Phase)
				})
			})
		})
	}
}

// An error of a setter keeps neither the others from running nor the status from
// being posted; it is no reason to try again, and it is logged once.
func TestSetterErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg := s.config()
		var mended atomic.Bool
		ran := 0
		cfg.Setters = []Setter{
			func(context.Context, *v1.Node) error {
				if mended.Load() {
					return nil
				}
				return errors.New("gpu driver is gone")
			},
			func(_ context.Context, n *v1.Node) error {
				ran++
				n.Labels["example.com/ran"] = "yes"
				return nil
			},
		}
		s.steady(cfg, func() {
			apitest.Diff(t, "setter after it", 2, ran)
			apitest.Diff(t, "label", "yes", s.api.Current().Labels["example.com/ran"])
			s.judge(pressure.MemoryPressure, true)
			s.api.Took(t, "a change", "PATCH")
			s.sleep(2 * time.Minute)
			s.api.Took(t, "later", "")
			apitest.Diff(t, "logs", []string{`level=WARN msg="part of the node's status could not be set" node=node-1 err="set node status: gpu driver is gone"`}, s.logs.With("could"))
			mended.Store(true)
			s.sleep(10 * time.Second)
			apitest.Diff(t, "logs", []string{`level=INFO msg="all of the node's status could be set" node=node-1`}, s.logs.With("could"))
		})
	})
}

// Labels that the scheduler needs are mended, and nothing else is.
func TestRequiredLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.api.Put(func(n *v1.Node) {
				n.Labels = map[string]string{v1.LabelOSStable: "plan9", "a": "b"}
			})
			s.api.Took(t, "labels", "PATCH")
			labels := s.api.Current().Labels
			if len(labels) != 3 || labels["a"] != "b" || requireLabels(s.api.Current()) {
				t.Errorf("labels %v", labels)
			}
		})
	})
}

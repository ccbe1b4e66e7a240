package status

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
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
						s.api.took(t, "idle", "")
						rack.Store(value)
						s.sleep(10 * time.Second)
						s.api.took(t, name+" are set to "+value, "PATCH")
						if got, ok := of(s.api.current())["rack"]; got != value || ok != (value != "") {
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
			s.api.took(t, "without the label", "")
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
					s.api.took(t, "changed", "PATCH")
					if lines := s.logs.with("setter changes"); len(lines) != 1 || !strings.Contains(lines[0], test.logged) {
						t.Errorf("logged: %q", lines)
					}
					diff(t, "what the setter set besides", v1.NodeRunning, s.api.current().Status.Phase)
				})
			})
		})
	}
}

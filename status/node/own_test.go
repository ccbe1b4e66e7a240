package node

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// row is a condition of our own.
func row(kind string, is bool, message string) status.Condition {
	c := status.Condition{Type: kind, Status: v1.ConditionFalse, Reason: "Good", Message: message, Since: time.Now()}
	if is {
		c.Status, c.Reason = v1.ConditionTrue, "Bad"
	}
	return c
}

// wrote is an entry of managedFields.
func wrote(manager string, kinds ...string) metav1.ManagedFieldsEntry {
	conditions := map[string]any{}
	for _, kind := range kinds {
		conditions[`k:{"type":"`+kind+`"}`] = map[string]any{"f:status": map[string]any{}}
	}
	raw, err := json.Marshal(map[string]any{"f:status": map[string]any{"f:conditions": conditions}})
	if err != nil {
		panic(err)
	}
	return metav1.ManagedFieldsEntry{Manager: manager, Subresource: "status", FieldsV1: metav1.NewFieldsV1(string(raw))}
}

// Conditions of our own are posted after the kubelet's, at once when they change, with
// an Event; a message by itself is no change, and those that are no longer among the
// facts are removed.
func TestOwnConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		const a, b = "nodeprobe.dev/A", "example.com/B"
		rows := func(list ...status.Condition) {
			s.facts(func(f *Facts) { f.Conditions = list })
		}
		types := func() (list []string) {
			for _, c := range s.api.Current().Status.Conditions {
				list = append(list, string(c.Type))
			}
			return list
		}
		rows(row(a, false, "all is well"), row(b, true, "1 of 2"))
		s.steady(s.config(), func() {
			apitest.Diff(t, "conditions", []string{"MemoryPressure", "DiskPressure", "PIDPressure", "Ready", a, b}, types())
			apitest.Diff(t, "B", v1.NodeCondition{
				Type: b, Status: v1.ConditionTrue, Reason: "Bad", Message: "1 of 2", LastTransitionTime: apitest.At(0),
			}, s.condition(b), apitest.SameTimes())
			apitest.Diff(t, "events", []string{"NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "Bad"}, s.events.Take())
			s.api.Put(func(n *v1.Node) { // as the API server would note it
				n.ManagedFields = append(n.ManagedFields, wrote(status.DefaultFieldManager, "Ready", "MemoryPressure", a, b))
			})
			s.sleep(9 * time.Second)
			s.api.Take()

			rows(row(a, true, "5Mi left"), row(b, true, "1 of 2"))
			s.Wake()
			s.api.Took(t, "True", "PATCH")
			apitest.Diff(t, "transition", apitest.At(10), s.condition(a).LastTransitionTime, apitest.SameTimes())
			apitest.Diff(t, "events", []string{"Bad"}, s.events.Take())

			rows(row(a, true, "4Mi left"), row(b, true, "1 of 2"))
			s.Wake()
			s.sleep(time.Minute)
			s.api.Took(t, "another figure", "")
			apitest.Diff(t, "message", "5Mi left", s.condition(a).Message)

			rows(row(b, true, "1 of 2"))
			s.Wake()
			s.api.Took(t, "one is no longer configured", "PATCH")
			apitest.Diff(t, "conditions", []string{"MemoryPressure", "DiskPressure", "PIDPressure", "Ready", b}, types())
			s.sleep(time.Second)
			rows()
			s.Wake()
			s.api.Took(t, "none is", "PATCH")
			apitest.Diff(t, "conditions", []string{"MemoryPressure", "DiskPressure", "PIDPressure", "Ready"}, types())
			s.sleep(time.Minute)
			s.api.Took(t, "afterwards", "")
			apitest.Diff(t, "errors", []string(nil), s.logs.With("WARN", "ERROR"))
		})
	})
}

// Idle passes are left out with conditions of our own, too, until one changes.
func TestOwnConditionsWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lookups := 0
		addresses := testAddresses()
		addresses.Interfaces = func() ([]net.Addr, error) { lookups++; return ownAddresses("10.0.0.1"), nil }
		c := New(Config{NodeName: apitest.NodeName, Resources: testResources(), Addresses: addresses})
		facts := machineFacts(time.Now())
		facts.Conditions = []status.Condition{row("nodeprobe.dev/A", false, "all is well")}
		c.Observe(facts)
		node, _, err := c.Initial(t.Context(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		pass := func(what string, runs, changed bool) {
			t.Helper()
			time.Sleep(time.Second)
			before := lookups
			draft := c.Draft(t.Context(), node, time.Now(), false)
			apitest.Diff(t, what+": it runs", runs, lookups > before)
			apitest.Diff(t, what+": changed", changed, draft.Changed)
		}
		pass("first", true, false)
		pass("idle", false, false)
		facts.Conditions = []status.Condition{row("nodeprobe.dev/A", false, "all is very well")}
		c.Observe(facts)
		pass("another message", false, false)
		facts.Conditions = []status.Condition{row("nodeprobe.dev/A", true, "no more")}
		c.Observe(facts)
		pass("another status", true, true)
		facts.Conditions = nil
		c.Observe(facts)
		pass("none any more", true, true)
	})
}

// The rules of ownership are those of augment mode. Where users have setters of their
// own, what we wrote may be theirs.
func TestOwnConditionsOfOthers(t *testing.T) {
	const a, b, c = "nodeprobe.dev/A", "example.com/B", "example.com/C"
	setter := func(context.Context, *v1.Node) error { return nil }
	for _, test := range []struct {
		name     string
		managers []metav1.ManagedFieldsEntry
		manager  string
		setters  []Setter
		rows     []string
		was      []string // of earlier facts
		want     string   // those on the Node that are left, "!" marks those that we set
		err      string
	}{
		{name: "ours", managers: []metav1.ManagedFieldsEntry{wrote(status.DefaultFieldManager, a, b, c)}, rows: []string{a, b, c}, want: a + "! " + b + "! " + c + "!"},
		{
			name: "another writer's", managers: []metav1.ManagedFieldsEntry{wrote("npd", b), wrote(status.DefaultFieldManager, a, c)}, rows: []string{a, b, c},
			want: a + "! " + b + " " + c + "!",
			err:  "set node status: condition example.com/B was written by npd: it is left alone; choose another type, or remove that condition",
		},
		{name: "no longer configured", managers: []metav1.ManagedFieldsEntry{wrote(status.DefaultFieldManager, a, b), wrote("npd", c)}, want: c},
		{name: "under another name", manager: "edge-agent", managers: []metav1.ManagedFieldsEntry{wrote("edge-agent", b), wrote(status.DefaultFieldManager, a, c)}, want: a + " " + c},
		{name: "a user's setter may have written it", setters: []Setter{setter}, managers: []metav1.ManagedFieldsEntry{wrote(status.DefaultFieldManager, a, b, c)}, want: b + " " + c},
		{
			name: "but not what was configured before", setters: []Setter{setter}, was: []string{b},
			managers: []metav1.ManagedFieldsEntry{wrote(status.DefaultFieldManager, a, b, c)}, want: c,
		},
		{
			name: "a kubelet's", rows: []string{"Ready", a}, managers: []metav1.ManagedFieldsEntry{wrote(status.DefaultFieldManager, a, b, c, "Ready")},
			want: a + "!", err: "set node status: condition Ready is a kubelet's: choose another type",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			content := New(Config{Addresses: testAddresses(), Resources: testResources(), Setters: test.setters, FieldManager: test.manager})
			node := &v1.Node{ObjectMeta: metav1.ObjectMeta{ManagedFields: test.managers}}
			for _, kind := range []string{a, b, c} {
				node.Status.Conditions = append(node.Status.Conditions, v1.NodeCondition{Type: v1.NodeConditionType(kind), Status: v1.ConditionUnknown})
			}
			facts := machineFacts(apitest.Epoch)
			for _, kind := range test.was {
				facts.Conditions = append(facts.Conditions, row(kind, true, "x"))
			}
			if err := content.pass(&facts, apitest.Epoch).apply(t.Context(), node.DeepCopy()); err != nil {
				t.Error(err)
			}
			facts.Conditions = nil
			for _, kind := range test.rows {
				facts.Conditions = append(facts.Conditions, row(kind, true, "x"))
			}
			err := content.pass(&facts, apitest.Epoch).apply(t.Context(), node)
			var left []string
			for _, c := range node.Status.Conditions {
				switch {
				case slices.Contains(status.BuiltIn, c.Type):
				case c.Status == v1.ConditionTrue:
					left = append(left, string(c.Type)+"!")
				default:
					left = append(left, string(c.Type))
				}
			}
			apitest.Diff(t, "conditions", test.want, strings.Join(left, " "))
			apitest.Diff(t, "Ready", v1.ConditionTrue, condition(node, v1.NodeReady).Status)
			apitest.Diff(t, "error", test.err, apitest.ErrorText(err))
		})
	}
}

// Other resources are shown by the next pass, as one patch.
func TestSetResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg := s.config()
		s.steady(cfg, func() {
			s.sleep(25 * time.Second)
			s.api.Took(t, "idle", "")
			next := cfg.Resources
			next.MaxPods, next.SystemReserved = 7, apitest.Resources(map[string]string{"cpu": "500m"})
			s.content.SetResources(next)
			s.Wake()
			calls := s.api.Take()
			if apitest.Verbs(calls) != "PATCH" || !strings.Contains(calls[0].Body, `"allocatable":{"cpu":"3500m","pods":"7"}`) {
				t.Fatalf("calls %v", calls)
			}
			s.Wake()
			s.api.Took(t, "nothing new", "")
		})
	})
}

// What others add to the capacity is given to pods.
func TestForeignResource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.sleep(time.Minute)
			s.api.Put(func(n *v1.Node) {
				n.Status.Capacity["example.com/x"] = apitest.Resources(map[string]string{"x": "3"})["x"]
			})
			calls := s.api.Take()
			if apitest.Verbs(calls) != "PATCH" || !strings.Contains(calls[0].Body, `"allocatable":{"example.com/x":"3"}`) {
				t.Errorf("calls %v", calls)
			}
		})
	})
}

// That a node became unhealthy during an outage shows with the time at which it did.
func TestHealthDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.sleep(time.Minute)
			s.api.Refuse("GET PATCH WATCH", apitest.ErrDown)
			s.judge(pressure.PIDPressure, true)
			s.sleep(time.Minute)
			s.mu.Lock()
			s.unhealthy = errors.New("the sampler is stuck")
			s.mu.Unlock()
			s.sleep(5 * time.Minute)
			s.api.Refuse("", nil)
			s.sleep(time.Minute)
			ready := s.condition(v1.NodeReady)
			apitest.Diff(t, "Ready", v1.ConditionFalse, ready.Status)
			if since := ready.LastTransitionTime.Sub(apitest.Epoch); since < 2*time.Minute || since > 2*time.Minute+15*time.Second {
				t.Errorf("Ready is False since %v after the start, want 2m and a pass", since)
			}
		})
	})
}

// What is posted before the node stops does not wait for a token, once; a shutdown that
// is announced and cancelled again and again is bounded as any flapping is.
func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		leave := func(why error) {
			s.facts(func(f *Facts) { f.Leaving = why })
			s.Wake()
			synctest.Wait()
		}
		s.steady(s.config(), func() {
			for i := range 6 {
				s.judge(pressure.PIDPressure, i%2 == 0)
				s.sleep(600 * time.Millisecond)
			}
			s.api.Take()
			s.judge(pressure.PIDPressure, true)
			s.api.Took(t, "the bucket is empty", "")
			leave(errors.New("node is shutting down"))
			s.api.Took(t, "shutdown", "PATCH")
			apitest.Diff(t, "message", "node is shutting down", s.condition(v1.NodeReady).Message)
			s.judge(pressure.PIDPressure, false)
			s.api.Took(t, "what else changes waits", "")

			s.sleep(time.Minute)
			s.api.Take()
			const minutes = 5
			for i := range minutes * 60 {
				if leave(nil); i%2 == 0 {
					leave(errors.New("node is shutting down"))
				}
				s.sleep(time.Second)
			}
			// Each announcement that does not wait follows a withdrawal that did.
			if n, most := strings.Count(apitest.Verbs(s.api.Take()), "PATCH"), 2*(3+6*minutes)+1; n > most || n == 0 {
				t.Errorf("%d patches in %d minutes, want at most %d", n, minutes, most)
			}
		})
	})
}

// Annotations are set when the Node is created; on one that exists they are left to
// no matter which client set them.
func TestRegistrationAnnotations(t *testing.T) {
	cfg := Config{NodeName: apitest.NodeName, Addresses: testAddresses(), Resources: testResources()}
	cfg.Registration.Annotations = map[string]string{"example.com/rack": "r7"}
	facts := machineFacts(apitest.Epoch)
	node := initial(t, cfg, &facts)
	apitest.Diff(t, "annotations", map[string]string{"example.com/rack": "r7"}, node.Annotations)
	cfg.Registration.ControllerAttachDetach = true
	node = initial(t, cfg, &facts)
	apitest.Diff(t, "annotations", map[string]string{"example.com/rack": "r7", attachDetachAnnotation: "true"}, node.Annotations)
	apitest.Diff(t, "the configuration", map[string]string{"example.com/rack": "r7"}, cfg.Registration.Annotations)

	existing := node.DeepCopy()
	existing.Annotations["example.com/rack"] = "r8"
	if _, changed := New(cfg).Mend(existing, node); changed {
		t.Error("an annotation of others is mended")
	}
}

package status

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// managed is an entry of managedFields: a manager that has written conditions.
func managed(manager, subresource string, types ...string) metav1.ManagedFieldsEntry {
	conditions := map[string]any{".": map[string]any{}}
	for _, kind := range types {
		conditions[`k:{"type":"`+kind+`"}`] = map[string]any{".": map[string]any{}, "f:status": map[string]any{}, "f:type": map[string]any{}}
	}
	raw, err := json.Marshal(map[string]any{"f:status": map[string]any{"f:conditions": conditions}})
	if err != nil {
		panic(err)
	}
	return metav1.ManagedFieldsEntry{Manager: manager, Subresource: subresource, FieldsV1: metav1.NewFieldsV1(string(raw))}
}

func ours(kind string, status v1.ConditionStatus, since int) Condition {
	f := Condition{Type: kind, Status: status, Reason: "Good", Message: "all is well", Since: apitest.At(since).Time}
	if status == v1.ConditionTrue {
		f.Reason, f.Message = "Bad", "memory.available is 5Mi, below 1Gi"
	}
	return f
}

// patchOf returns the conditions of a patch in short, and checks that the patch
// holds nothing else.
func patchOf(t *testing.T, a *conditionDiff, all bool) []string {
	t.Helper()
	body, err := a.patch(all)
	if err != nil {
		t.Fatal(err)
	}
	var patch map[string]map[string][]map[string]string
	if err := json.Unmarshal(body, &patch); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if len(patch) != 1 || len(patch["status"]) != 1 {
		t.Errorf("the patch holds more than conditions: %s", body)
	}
	texts := []string{}
	for _, c := range patch["status"]["conditions"] {
		if c["$patch"] != "" {
			texts = append(texts, c["$patch"]+" "+c["type"])
			continue
		}
		for _, field := range []string{"type", "status", "reason", "message", "lastHeartbeatTime", "lastTransitionTime"} {
			if c[field] == "" {
				t.Errorf("%s of a condition is empty: %s", field, body)
			}
		}
		texts = append(texts, strings.Join([]string{c["type"], c["status"], c["reason"], c["lastTransitionTime"][14:19]}, " "))
	}
	slices.Sort(texts)
	return texts
}

// What is posted beside a kubelet, by what the Node says and who wrote that.
func TestCompareConditions(t *testing.T) {
	condition := func(kind string, status v1.ConditionStatus, since int) v1.NodeCondition {
		return v1.NodeCondition{Type: v1.NodeConditionType(kind), Status: status, Reason: map[v1.ConditionStatus]string{"True": "Bad", "False": "Good"}[status], LastTransitionTime: apitest.At(since)}
	}
	const a, b = "nodeprobe.dev/A", "nodeprobe.dev/B"
	for _, test := range []struct {
		name      string
		has       []v1.NodeCondition
		managers  []metav1.ManagedFieldsEntry
		ours      []Condition
		news, all []string
		events    []string
		wrong     string
	}{
		{
			name: "nothing there yet", ours: []Condition{ours(a, v1.ConditionFalse, 10), ours(b, v1.ConditionTrue, 20)},
			news:   []string{a + " False Good 00:10", b + " True Bad 00:20"},
			events: []string{"Warning Bad Node node-1 condition nodeprobe.dev/B is now True: memory.available is 5Mi, below 1Gi"},
		},
		{
			name: "unchanged", has: []v1.NodeCondition{condition(a, "False", 5)}, managers: []metav1.ManagedFieldsEntry{managed(DefaultFieldManager, "status", a)},
			ours: []Condition{ours(a, v1.ConditionFalse, 10)}, all: []string{a + " False Good 00:05"},
		},
		{
			name: "changed", has: []v1.NodeCondition{condition(a, "False", 5), condition(b, "True", 6)},
			managers: []metav1.ManagedFieldsEntry{managed(DefaultFieldManager, "status", a, b)},
			ours:     []Condition{ours(a, v1.ConditionTrue, 10), ours(b, v1.ConditionTrue, 20)},
			news:     []string{a + " True Bad 00:10"}, all: []string{a + " True Bad 00:10", b + " True Bad 00:06"},
			events: []string{"Warning Bad Node node-1 condition nodeprobe.dev/A is now True: memory.available is 5Mi, below 1Gi"},
		},
		{
			name: "ends", has: []v1.NodeCondition{condition(a, "True", 5)}, managers: []metav1.ManagedFieldsEntry{managed(DefaultFieldManager, "status", a)},
			ours: []Condition{ours(a, v1.ConditionFalse, 10)}, news: []string{a + " False Good 00:10"},
			events: []string{"Normal Good Node node-1 condition nodeprobe.dev/A is now False: all is well"},
		},
		{
			name: "not in the configuration any more", has: []v1.NodeCondition{condition(a, "True", 5), condition(b, "True", 5), condition("Ready", "True", 1)},
			managers: []metav1.ManagedFieldsEntry{managed(DefaultFieldManager, "status", a, b), managed("kubelet", "status", "Ready")},
			ours:     []Condition{ours(a, v1.ConditionTrue, 1)}, news: []string{"delete " + b}, all: []string{"delete " + b, a + " True Bad 00:05"},
		},
		{
			name: "another's", has: []v1.NodeCondition{condition(a, "True", 5), condition(b, "False", 5)},
			managers: []metav1.ManagedFieldsEntry{managed("node-problem-detector", "status", a), managed(DefaultFieldManager, "status", b)},
			ours:     []Condition{ours(a, v1.ConditionFalse, 10), ours(b, v1.ConditionTrue, 11)}, news: []string{b + " True Bad 00:11"},
			events: []string{"Warning Bad Node node-1 condition nodeprobe.dev/B is now True: memory.available is 5Mi, below 1Gi"},
			wrong:  "condition nodeprobe.dev/A was written by node-problem-detector: it is left alone; choose another type, or remove that condition",
		},
		{
			name: "others' are never touched", has: []v1.NodeCondition{condition("Ready", "True", 5), condition("KernelDeadlock", "False", 5)},
			managers: []metav1.ManagedFieldsEntry{managed("kubelet", "status", "Ready"), managed("node-problem-detector", "status", "KernelDeadlock")},
			ours:     []Condition{ours(a, v1.ConditionFalse, 10)}, news: []string{a + " False Good 00:10"},
		},
		{
			name: "nobody knows who", has: []v1.NodeCondition{condition(a, "False", 5)}, managers: []metav1.ManagedFieldsEntry{{Manager: "x", Subresource: "status"}},
			ours: []Condition{ours(a, v1.ConditionTrue, 10)}, news: []string{a + " True Bad 00:10"},
			events: []string{"Warning Bad Node node-1 condition nodeprobe.dev/A is now True: memory.available is 5Mi, below 1Gi"},
		},
		{
			name: "once in mode own", has: []v1.NodeCondition{condition(b, "True", 5), condition("Ready", "True", 1), condition("PIDPressure", "False", 1)},
			managers: []metav1.ManagedFieldsEntry{managed(DefaultFieldManager, "status", b, "Ready", "PIDPressure")}, news: []string{"delete " + b},
		},
		{name: "written, and not by status", has: []v1.NodeCondition{condition("example.com/C", "True", 5)}, managers: []metav1.ManagedFieldsEntry{managed(DefaultFieldManager, "", "example.com/C")}},
		{name: "nobody knows whose, by its name ours", has: []v1.NodeCondition{condition(b, "True", 5), condition("example.com/C", "True", 5)}, news: []string{"delete " + b}},
	} {
		t.Run(test.name, func(t *testing.T) {
			node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: apitest.NodeName, ManagedFields: test.managers}, Status: v1.NodeStatus{Conditions: test.has}}
			before := node.DeepCopy()
			got := compareConditions(node, test.ours, DefaultFieldManager, apitest.At(60).Time)
			apitest.Diff(t, "the Node", before, node)
			if test.all == nil {
				test.all = test.news
			}
			if got.changed() {
				apitest.Diff(t, "news", test.news, patchOf(t, &got, false))
			} else if len(test.news) > 0 {
				t.Error("no news")
			}
			if len(test.all) > 0 {
				apitest.Diff(t, "all", test.all, patchOf(t, &got, true))
			}
			var events []string
			for _, e := range got.events {
				events = append(events, strings.Join([]string{e.Type, e.Reason, e.Message}, " "))
			}
			apitest.Diff(t, "events", test.events, events)
			apitest.Diff(t, "error", test.wrong, apitest.ErrorText(got.err))
		})
	}
}

// A restart that finds its conditions as they were leaves all turns for what comes.
func TestConditionsRestartTakesNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		status := v1.ConditionFalse
		cfg := s.config()
		cfg.Registrar = nil
		cfg.Content = contentFunc(func() []Condition {
			s.mu.Lock()
			defer s.mu.Unlock()
			return []Condition{ours("nodeprobe.dev/A", status, 0)}
		})
		s.api.Put(func(node *v1.Node) {
			f := ours("nodeprobe.dev/A", v1.ConditionFalse, 0)
			node.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeConditionType(f.Type), Status: v1.ConditionFalse, Reason: f.Reason, Message: f.Message}}
		})
		s.play(cfg, func() {
			s.sleep(time.Second)
			s.api.Take()
			for _, to := range []v1.ConditionStatus{v1.ConditionTrue, v1.ConditionFalse, v1.ConditionTrue} {
				s.mu.Lock()
				status = to
				s.mu.Unlock()
				s.Wake()
				s.sleep(time.Second)
				s.api.Took(t, string(to), "PATCH")
			}
		})
	})
}

// Beside a kubelet no Node is created, nothing but our own conditions is written,
// on change or once in a period, and the rest of the Node stays.
func TestConditionsUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		status := v1.ConditionFalse
		cfg := s.config()
		cfg.Registrar = nil
		cfg.UpdateFrequency, cfg.Spread = time.Minute, true
		cfg.Content = contentFunc(func() []Condition {
			s.mu.Lock()
			defer s.mu.Unlock()
			return []Condition{ours("nodeprobe.dev/A", status, 0)}
		})
		set := func(to v1.ConditionStatus) {
			s.mu.Lock()
			status = to
			s.mu.Unlock()
			s.Wake()
			s.sleep(time.Second)
		}
		s.play(cfg, func() {
			s.sleep(time.Minute)
			if got := apitest.Verbs(s.api.Take()); strings.Contains(got, "POST") || strings.Contains(got, "PATCH") || !strings.Contains(got, "GET") {
				t.Errorf("without a Node: %s", got)
			}
			s.api.Put(func(node *v1.Node) {
				node.Labels = map[string]string{"a": "b"}
				node.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
			})
			s.sleep(10 * time.Second)
			if got := apitest.Verbs(s.api.Take()); !strings.HasSuffix(got, "GET ADOPT PATCH") {
				t.Errorf("at first: %s", got)
			}
			set(v1.ConditionTrue)
			s.api.Took(t, "True", "PATCH")
			set(v1.ConditionFalse)
			s.api.Took(t, "False", "PATCH")
			s.sleep(time.Hour)
			calls := s.api.Take()
			if len(calls) < 11 || len(calls) > 13 {
				t.Errorf("%d calls in an hour: %s", len(calls), apitest.Verbs(calls))
			}
			phase := phaseOf(apitest.NodeName, 5*time.Minute)
			for _, c := range calls {
				if got := c.At.Sub(c.At.Truncate(5 * time.Minute)); got != phase {
					t.Errorf("posted %s into the period, want %s", got, phase)
				}
			}
			if got := s.condition("Ready"); got.Status != v1.ConditionTrue {
				t.Errorf("Ready is %+v", got)
			}
			if node := s.api.Current(); node.Labels["a"] != "b" || len(node.Labels) != 1 || len(node.Status.Capacity) > 0 {
				t.Errorf("Node is %+v", node)
			}
		})
	})
}

func TestPhaseIsSpread(t *testing.T) {
	const nodes, slots = 1000, 10
	var counts [slots]int
	for i := range nodes {
		name := "worker-" + string(rune('a'+i%26)) + "-" + time.Duration(i).String()
		counts[int(phaseOf(name, slots*time.Second)/time.Second)]++
	}
	chi := 0.0
	for _, n := range counts {
		d := float64(n) - nodes/slots
		chi += d * d / (nodes / slots)
	}
	if chi > 27.9 { // 9 degrees of freedom, 0.1 %
		t.Errorf("%v: chi square is %.1f", counts, chi)
	}
}

// What the API server refuses is tried once in a minute; what has failed, soon
// again.
func TestConditionsFail(t *testing.T) {
	for _, test := range []struct {
		name  string
		err   error
		after time.Duration // until the next attempt
		want  string        // first
		again string
	}{
		{"forbidden", apitest.ErrForbidden, time.Minute, "PATCH", "GET PATCH"},
		{"denied by a policy", apierrors.NewInvalid(v1.SchemeGroupVersion.WithKind("Node").GroupKind(), apitest.NodeName, nil), time.Minute, "PATCH", "GET PATCH"},
		{"down", apitest.ErrDown, 10 * time.Second, "PATCH GET PATCH FAILURE GET PATCH FAILURE GET PATCH FAILURE GET PATCH FAILURE", "GET PATCH"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				cfg := s.config()
				cfg.Registrar, cfg.UpdateFrequency = nil, time.Minute
				cfg.Content = contentFunc(func() []Condition {
					s.mu.Lock()
					defer s.mu.Unlock()
					return []Condition{ours("nodeprobe.dev/A", s.pressures[0].Status, 0)}
				})
				cfg.RetryRefused, cfg.RetryPeriod = false, 10*time.Second
				s.api.Put(func(*v1.Node) {})
				s.play(cfg, func() {
					s.sleep(10 * time.Second)
					s.api.Took(t, "start", "GET ADOPT PATCH")
					s.api.Refuse("PATCH", test.err)
					s.judge(v1.NodeMemoryPressure, true)
					s.sleep(test.after - time.Second)
					s.api.Took(t, "at first", test.want)
					s.api.Refuse("", nil)
					s.sleep(2 * time.Second)
					s.api.Took(t, "again", test.again)
					apitest.Diff(t, "logged", 1, len(s.logs.With("ERROR")))
					apitest.Diff(t, "ready", nil, s.Ready())
				})
			})
		})
	}
}

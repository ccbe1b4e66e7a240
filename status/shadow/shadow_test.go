package shadow

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// Each step is a second: o and O are our False and True, k and K the kubelet's, ? is
// a Node whose condition is Unknown.
func TestComparison(t *testing.T) {
	for _, test := range []struct{ steps, want string }{
		{"", ""},
		{"o", ""},
		{"ok", "agrees 1"},
		{"okOOOK", "agrees 1, lead 3"}, // every letter takes its second
		{"okO...Kok", "agrees 1, lead 4, both 1"},
		{"okOK.kO.o", "agrees 1, lead 1, both 1"}, // ours goes on while it is True
		{"okK..Ook", "agrees 1, lead -3, both 1"},
		{"okO..o", "agrees 1, nodeprobe 1"},
		{"okK.k", "agrees 1, kubelet 1"},
		{"okO", "agrees 0"},
		{"okO?..o", "agrees 1, nodeprobe 1"}, // a controller's Unknown is not the kubelet's word
		{"OKok", "agrees 1"},                 // it was so before anybody looked
		{"OK", "agrees 1"},
		{"okOKokOKok", "agrees 1, lead 2, both 2"},
	} {
		reg := prometheus.NewPedanticRegistry()
		s := New(reg)
		now := apitest.Epoch
		for _, step := range test.steps {
			now = now.Add(time.Second)
			node := &v1.Node{Status: v1.NodeStatus{Conditions: []v1.NodeCondition{
				{Type: v1.NodeDiskPressure, Status: v1.ConditionTrue}, // the last one counts
				{Type: v1.NodeDiskPressure},
			}}}
			condition := &node.Status.Conditions[1].Status
			switch step {
			case 'o', 'O':
				ours := v1.ConditionFalse
				if step == 'O' {
					ours = v1.ConditionTrue
				}
				s.Ours(v1.NodeDiskPressure, ours, now)
				s.Ours(v1.NodeDiskPressure, v1.ConditionUnknown, now) // which says nothing
				s.Ours(v1.NodeReady, v1.ConditionTrue, now)           // nor is that compared
			case 'k':
				*condition = v1.ConditionFalse
				s.Theirs(node, now)
			case 'K':
				*condition = v1.ConditionTrue
				s.Theirs(node, now)
			case '?':
				*condition = v1.ConditionUnknown
				s.Theirs(node, now)
			}
		}
		if got := shadowFigures(t, reg); got != test.want {
			t.Errorf("%s: %s, want %s", test.steps, got, test.want)
		}
	}
}

// shadowFigures are those of disk pressure.
func shadowFigures(t *testing.T, reg prometheus.Gatherer) string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	figures := map[string]string{}
	for _, family := range families {
		for _, m := range family.Metric {
			labels := map[string]string{}
			for _, l := range m.Label {
				labels[l.GetName()] = l.GetValue()
			}
			switch {
			case labels["condition"] != "DiskPressure":
			case family.GetName() == "nodeprobe_shadow_agrees":
				figures["agrees"] = fmt.Sprint(m.Gauge.GetValue())
			case m.Histogram != nil && m.Histogram.GetSampleCount() > 0:
				figures["lead"] = fmt.Sprint(m.Histogram.GetSampleSum())
			case m.Counter != nil && m.Counter.GetValue() > 0:
				figures[labels["seen_by"]] = fmt.Sprint(m.Counter.GetValue())
			}
		}
	}
	var texts []string
	for _, name := range []string{"agrees", "lead", "both", "nodeprobe", "kubelet"} {
		if figures[name] != "" {
			texts = append(texts, name+" "+figures[name])
		}
	}
	return strings.Join(texts, ", ")
}

package nodeprobe

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/heartbeat"
	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

// counted returns all counters of a registry that are not zero, those of histograms
// included, by their labels.
func counted(t *testing.T, registry prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := fmt.Sprint(f.GetName(), m.GetLabel())
			if n := float64(m.GetHistogram().GetSampleCount()) + m.GetCounter().GetValue(); n > 0 {
				values[name] = n
			}
		}
	}
	return values
}

// withoutTicking leaves out what is counted whatever happens.
func withoutTicking(counts map[string]float64) map[string]float64 {
	maps.DeleteFunc(counts, func(name string, _ float64) bool {
		return strings.Contains(name, "heartbeat") || strings.Contains(name, "sampler")
	})
	return counts
}

// A rehearsal writes every kind of object as a dry run, and leaves nothing behind: no
// write, no count, no line of the log, no condition.
func TestRehearse(t *testing.T) {
	for _, mode := range []Mode{Observe, Augment, Own} {
		t.Run(string(mode), func(t *testing.T) {
			api := newAPIServer(t)
			if mode == Augment {
				api.node = kubeletNode(0)
			}
			cfg, log := treeConfig(t, testtree.New(t, nil))
			registry := prometheus.NewRegistry()
			cfg.Mode, cfg.API, cfg.Registerer = mode, api.config, registry
			a, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			running(t, a)
			testtree.Eventually(t, "readiness", func() bool { s := a.State(); return s.IsReady() == nil })
			before := counted(t, registry)
			testtree.Eventually(t, "a pause", func() bool { // once the Events of the start are posted
				last := before
				time.Sleep(200 * time.Millisecond)
				before = counted(t, registry)
				return maps.Equal(withoutTicking(last), withoutTicking(before))
			})
			state, lines := a.State(), log.String()
			api.mu.Lock()
			node, lease, events, requests := api.node, api.lease, len(api.events), len(api.requests)
			api.mu.Unlock()

			if err := a.Rehearse(t.Context()); err != nil {
				t.Error(err)
			}

			if after := counted(t, registry); !maps.Equal(withoutTicking(after), withoutTicking(before)) {
				t.Errorf("counted %v\nbefore  %v", after, before)
			}
			if now := a.State(); now.Verdicts != state.Verdicts || !slices.Equal(now.Conditions, state.Conditions) {
				t.Errorf("conditions are %v, %v", now.Verdicts, now.Conditions)
			}
			for line := range strings.Lines(strings.TrimPrefix(log.String(), lines)) {
				if !strings.Contains(line, "level=DEBUG") && !strings.Contains(line, "no notifications from source") {
					t.Errorf("it logs %s", line)
				}
			}
			api.mu.Lock()
			defer api.mu.Unlock()
			if api.node != node || len(api.events) != events || mode != Own && api.lease != lease {
				t.Errorf("written: node %v, lease %v, events %v", api.node, api.lease, api.events)
			}
			for _, r := range api.requests[requests:] {
				if !strings.HasPrefix(r, "GET ") && !strings.Contains(r, "/leases/") {
					t.Errorf("%s is not a dry run", r)
				}
			}
			want := map[Mode][]string{
				Augment: {`PATCH /api/v1/nodes/192.0.2.7/status .*"type":"nodeprobe.dev/`, "POST /api/v1/namespaces/default/events "},
				Own: {
					`PATCH /api/v1/nodes/192.0.2.7/status .*"status":"True","type":"MemoryPressure"`,
					"POST /api/v1/namespaces/default/events ", "PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/192.0.2.7 ",
				},
			}[mode]
			testDryRuns(t, api.dryRuns, want)
		})
	}
}

func testDryRuns(t *testing.T, dryRuns, want []string) {
	t.Helper()
	for _, w := range want {
		prefix, content, _ := strings.Cut(w, ".*")
		if !slices.ContainsFunc(dryRuns, func(r string) bool { return strings.HasPrefix(r, prefix) && strings.Contains(r, content) }) {
			t.Errorf("no dry run %s in\n%s", w, strings.Join(dryRuns, "\n"))
		}
	}
	if len(want) == 0 && len(dryRuns) > 0 {
		t.Errorf("dry runs: %s", strings.Join(dryRuns, "\n"))
	}
}

// What an API server that is away keeps from being rehearsed is rehearsed when it answers,
// and nothing else then.
func TestRehearseLate(t *testing.T) {
	for mode, want := range map[Mode]string{Augment: "/api/v1/nodes/192.0.2.7/status ", Own: "/leases/192.0.2.7 "} {
		t.Run(string(mode), func(t *testing.T) {
			api := newAPIServer(t)
			if mode == Augment {
				api.node = kubeletNode(0)
			}
			api.refuse = func(*http.Request) bool { return true }
			cfg, log := treeConfig(t, testtree.New(t, nil))
			cfg.Mode, cfg.API = mode, api.config
			a, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			running(t, a)
			testtree.Eventually(t, "a sample", func() bool { s := a.State(); return !s.Snapshot.Time.IsZero() })
			if err := a.Rehearse(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "rehearse API server: ") {
				t.Errorf("Rehearse returns %v", err)
			}
			api.edit(func(s *apiServer) {
				testDryRuns(t, s.dryRuns, nil)
				s.refuse = nil
			})
			testtree.Eventually(t, "readiness", func() bool { s := a.State(); return s.IsReady() == nil })
			lines := log.String()
			if err := a.Rehearse(t.Context()); err != nil {
				t.Error(err)
			}
			api.edit(func(s *apiServer) {
				if !slices.ContainsFunc(s.dryRuns, func(r string) bool { return strings.Contains(r, want) }) {
					t.Errorf("no dry run of %s in %q", want, s.dryRuns)
				}
			})
			if again := strings.TrimPrefix(log.String(), lines); strings.Contains(again, "step=sampling") {
				t.Errorf("it rehearses again:\n%s", again)
			}
		})
	}
}

// An agent that has stood down, or does not know yet whether it may write, sends nothing.
func TestRehearseStoodDown(t *testing.T) {
	api := newAPIServer(t)
	cfg, _ := treeConfig(t, testtree.New(t, nil))
	cfg.Mode, cfg.API = Own, api.config
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	running(t, a)
	testtree.Eventually(t, "readiness", func() bool { s := a.State(); return s.IsReady() == nil })
	a.mode.(*ownMode).guard.Noticed(heartbeat.State{ForeignWriter: true, ForeignManager: "kubelet"})
	if err := a.Rehearse(t.Context()); err == nil || !strings.Contains(err.Error(), "stood down") {
		t.Errorf("Rehearse returns %v", err)
	}
	testDryRuns(t, api.dryRuns, nil)
}

// Before the first sample there is nothing to rehearse with.
func TestRehearseEarly(t *testing.T) {
	cfg, _ := treeConfig(t, testtree.New(t, nil))
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := a.Rehearse(t.Context()); err == nil {
		t.Error("it rehearses")
	}
}

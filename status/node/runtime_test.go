package node

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// What the runtime reports is posted; what it does not report, or not yet, stays.
func TestRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		yes := true
		full := Runtime{
			Version:  "containerd://1.7.2",
			Images:   []v1.ContainerImage{{Names: []string{"a:1"}, SizeBytes: 7}},
			Handlers: []v1.NodeRuntimeHandler{{Name: "runc"}},
			Features: &v1.NodeFeatures{SupplementalGroupsPolicy: &yes},
		}
		runtime := &full
		s.facts(func(f *Facts) { f.Runtime = runtime })
		become := func(r *Runtime, unready error) {
			s.mu.Lock()
			runtime, s.unready = r, unready
			s.mu.Unlock()
			s.sleep(time.Minute)
		}
		check := func(what string) {
			t.Helper()
			status := s.api.Current().Status
			apitest.Diff(t, what+": version", full.Version, status.NodeInfo.ContainerRuntimeVersion)
			apitest.Diff(t, what+": images", full.Images, status.Images)
			apitest.Diff(t, what+": handlers", full.Handlers, status.RuntimeHandlers)
			apitest.Diff(t, what+": features", full.Features, status.Features)
		}
		s.steady(s.config(), func() {
			check("at first")
			apitest.Diff(t, "ready", v1.ConditionTrue, s.condition(v1.NodeReady).Status)

			become(&Runtime{}, errors.Join(errors.New("container runtime is down"), errors.New("network state unknown")))
			check("gone")
			ready := s.condition(v1.NodeReady)
			apitest.Diff(t, "status", v1.ConditionFalse, ready.Status)
			apitest.Diff(t, "message", "[container runtime is down, network state unknown]", ready.Message)

			become(nil, nil)
			check("none any more")
			apitest.Diff(t, "ready", v1.ConditionTrue, s.condition(v1.NodeReady).Status)

			become(&Runtime{Images: []v1.ContainerImage{}, Handlers: []v1.NodeRuntimeHandler{}}, nil)
			status := s.api.Current().Status
			if len(status.Images) > 0 || len(status.RuntimeHandlers) > 0 {
				t.Errorf("images %v and handlers %v are gone from the runtime", status.Images, status.RuntimeHandlers)
			}
		})
	})
}

package nodeprobe

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeprobe/nodeprobe/internal/apiclient"
	"github.com/nodeprobe/nodeprobe/internal/testtree"
	"github.com/nodeprobe/nodeprobe/status/node"
)

// Every task is in State.Live by name, and one that is stuck is not alive, whether or not
// the API server can be reached.
func TestLiveness(t *testing.T) {
	api := newAPIServer(t)
	for mode, want := range map[Mode][]string{
		Observe: {"sampler", "kernel events", "notifier"},
		Augment: {"sampler", "kernel events", "notifier", "status", "events"},
		Own: {
			"sampler", "kernel events", "notifier", "guard", "status writer", "event recorder", "lease writer",
			"container runtime", "volumes", "csinode", "shutdown inhibitor",
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			cfg, _ := treeConfig(t, testtree.New(t, nil))
			cfg.Mode, cfg.API = mode, api.config
			cfg.VolumeLimitsFromCSINode, cfg.ShutdownGracePeriod = true, time.Second
			a, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			pulses := []*pulse{&a.pulses.events, &a.pulses.notifier}
			switch m := a.mode.(type) {
			case *ownMode:
				own := &m.pulses
				pulses = append(pulses, &own.guard, &own.updater, &own.recorder, &own.heartbeater,
					&own.runtime, &own.volumes, &own.csiNode, &own.inhibitor)
			case *augmentMode:
				pulses = append(pulses, &m.pulses.updater, &m.pulses.recorder)
			}
			var names []string
			for _, c := range a.State().Live {
				names = append(names, c.Name)
			}
			if !slices.Equal(names, want) {
				t.Errorf("mode %s: %q, want %q", mode, names, want)
			}
			failing := func() (failed []string) {
				for _, c := range a.State().Live[1:] { // nothing is sampled here
					if c.Err != nil {
						failed = append(failed, c.Name)
					}
				}
				return failed
			}
			for i, p := range pulses {
				p.beat(10 * time.Second)
				time.Sleep(9 * time.Second)
				if got := failing(); got != nil {
					t.Errorf("%s in time: %q fail", p.name, got)
				}
				time.Sleep(time.Minute) // the machine was stopped: there was no chance to beat
				if got := failing(); got != nil {
					t.Errorf("%s after a pause: %q fail", p.name, got)
				}
				time.Sleep(pulseGrace)
				if got := failing(); !slices.Equal(got, want[i+1:i+2]) {
					t.Errorf("%s stuck: %q fail", p.name, got)
				}
				p.beat(0)
				if got := failing(); got != nil {
					t.Errorf("%s again: %q fail", p.name, got)
				}
			}
		})
	}
}

// The tasks of mode own that ask the node or the API server are stuck where a round never
// ends, and not while they wait for the next one, or for an API server that is away.
func TestStuckTasks(t *testing.T) {
	api := newAPIServer(t)
	for name, test := range map[string]struct {
		request string // what becomes of the request for the CSINode
		hang    bool   // what a change leads to never ends
		want    []string
	}{
		"all is well":             {"succeeds", false, nil},
		"API server is away":      {"times out", false, nil},
		"API server refuses":      {"fails", false, nil},
		"a request never returns": {"hangs", false, []string{"csinode"}},
		"a change never ends":     {"succeeds", true, []string{"container runtime", "volumes", "csinode"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg, _ := treeConfig(t, testtree.New(t, nil))
				cfg.Mode, cfg.API = Own, api.config
				cfg.RuntimeEndpoint, cfg.VolumeLimitsFromCSINode = "/nothing.sock", true
				a, err := New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close()
				m := a.mode.(*ownMode)
				never := make(chan struct{})
				get := func(ctx context.Context, _ string) ([]byte, error) {
					switch test.request {
					case "succeeds":
						return []byte(`{"spec":{"drivers":[{"name":"d","allocatable":{"count":1}}]}}`), nil
					case "times out":
						<-ctx.Done()
					case "hangs":
						<-never
					}
					return nil, errors.New("refused")
				}
				reader := apiclient.NewCSINode(&apiclient.Clients{Get: get}, "n", time.Second, m.pulses.csiNode.beat, cfg.Logger)
				changed := func() {
					if test.hang {
						<-never
					}
				}
				ctx, stop := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { m.runtime.Run(ctx, changed) })
				running.Go(func() { m.volumes.Run(ctx, changed) })
				running.Go(func() { reader.Run(ctx, func(node.VolumeLimits) { changed() }) })
				stuck := map[string]bool{}
				for range 1000 {
					time.Sleep(pulseGrace)
					for _, c := range a.State().Live[1:] { // nothing is sampled here
						if c.Err != nil {
							stuck[c.Name] = true
						}
					}
				}
				if len(stuck) != len(test.want) || slices.ContainsFunc(test.want, func(name string) bool { return !stuck[name] }) {
					t.Errorf("stuck: %v, want %q", stuck, test.want)
				}
				stop()
				close(never)
				running.Wait()
			})
		})
	}
}

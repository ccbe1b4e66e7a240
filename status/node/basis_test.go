package node

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// Passes are only left out while nothing has changed that a status is made of.
func TestChangeIsFoundByTheNextPass(t *testing.T) {
	for name, change := range map[string]func(*Facts){
		"machine":   func(f *Facts) { f.Snapshot.Machine.KernelVersion = "6.13.0" },
		"capacity":  func(f *Facts) { f.Snapshot.Capacity.CPUs++ },
		"pages":     func(f *Facts) { f.Snapshot.Capacity.HugePages[1].Total = 1 },
		"condition": func(f *Facts) { f.Verdicts[1].Status = pressure.True },
		"runtime":   func(f *Facts) { f.Runtime = &Runtime{Version: "containerd://2.1.0"} },
		"volumes":   func(f *Facts) { f.Volumes = &Volumes{InUse: []v1.UniqueVolumeName{VolumeInUse("d", "a")}} },
		"limits":    func(f *Facts) { f.VolumeLimits = &VolumeLimits{"attachable-volumes-csi-d": 1} },
		"health":    func(f *Facts) { f.Leaving = errors.New("no samples") },
		"own condition": func(f *Facts) {
			f.Conditions = []status.Condition{{Type: "nodeprobe.dev/X", Status: v1.ConditionTrue, Reason: "X", Message: "x"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				cfg := s.config()
				s.steady(cfg, func() {
					s.sleep(25 * time.Second)
					s.api.Took(t, "idle", "")
					s.facts(change)
					s.sleep(10 * time.Second)
					s.api.Took(t, "changed", "PATCH")
				})
			})
		})
	}
}

// lookup makes an Addresses whose name server answers by f.
func lookup(f func() ([]net.IP, error)) Addresses {
	return Addresses{
		NodeName: apitest.NodeName, Hostname: apitest.NodeName,
		Lookup:       func(context.Context, string) ([]net.IP, error) { return f() },
		DefaultRoute: func(net.IP) (net.IP, error) { return nil, errors.New("no route") },
		Interfaces:   func() ([]net.Addr, error) { return ownAddresses("10.0.0.1", "10.0.0.2"), nil },
	}
}

// A pass that posts something else does not make an address serve for longer.
func TestAddressIsFoundByTheMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg := s.config()
		var moved atomic.Bool
		cfg.Addresses = lookup(func() ([]net.IP, error) {
			if moved.Load() {
				return []net.IP{net.ParseIP("10.0.0.2")}, nil
			}
			return []net.IP{net.ParseIP("10.0.0.1")}, nil
		})
		s.steady(cfg, func() {
			s.sleep(44 * time.Second)
			s.judge(pressure.MemoryPressure, true)
			s.sleep(time.Second)
			s.api.Took(t, "judged", "PATCH")
			moved.Store(true)
			s.sleep(30 * time.Second)
			s.api.Took(t, "moved", "PATCH")
			if got := s.api.Current().Status.Addresses[0].Address; got != "10.0.0.2" {
				t.Errorf("the address is %s", got)
			}
		})
	})
}

// What setters find out by themselves is found within a minute, and at once if
// they had failed; those of users run at every pass.
func TestPassesThatAreLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg := s.config()
		lookups := 0
		cfg.Addresses = lookup(func() ([]net.IP, error) {
			lookups++
			if lookups == 2 {
				return nil, errors.New("no name server")
			}
			return []net.IP{net.ParseIP("10.0.0.1")}, nil
		})
		s.steady(cfg, func() {
			s.sleep(5 * time.Minute)
			if lookups < 5 || lookups > 7 {
				t.Errorf("the address was looked up %d times in five minutes", lookups)
			}
		})
	})
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg := s.config()
		var runs atomic.Int32
		cfg.Setters = []Setter{func(context.Context, *v1.Node) error { runs.Add(1); return nil }}
		s.steady(cfg, func() {
			before := runs.Load()
			s.sleep(time.Minute)
			if got := runs.Load() - before; got != 6 {
				t.Errorf("a user's setter ran %d times in a minute", got)
			}
		})
	})
}

package cluster

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/agent"
	"github.com/nodeprobe/nodeprobe/test/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/pressure"
)

const (
	// transition is how long the kubelet and nodeprobe keep a condition True.
	transition = time.Second
	// refill is how long nodeprobe takes to be allowed another write when it has
	// written as often as it may.
	refill = 10 * time.Second
)

// load is a signal with a limit, and what crosses it for real.
type load struct {
	condition     corev1.NodeConditionType // the kubelet's
	signal, limit string
	press         func() error
	release       func() error
}

// own is our condition about the same.
func (l *load) own() corev1.NodeConditionType { return "nodeprobe.dev/" + l.condition }

// newLoads chooses limits that this machine is far away from now, so that what others
// do meanwhile does not matter.
func newLoads(disk *pressure.Filesystem) ([]*load, error) {
	memory, err := pressure.AvailableMemory()
	if err != nil {
		return nil, err
	}
	tasks, err := pressure.AvailableTasks()
	if err != nil {
		return nil, err
	}
	someMemory, someTasks := min(memory/6, 3<<30), int64(1500)
	memoryLimit, tasksLimit := (memory-someMemory)>>20<<20, tasks-someTasks
	return []*load{
		held(corev1.NodeMemoryPressure, "memory.available", fmt.Sprintf("%dMi", memoryLimit>>20), func() (*pressure.Pressure, error) {
			now, err := pressure.AvailableMemory()
			if err != nil {
				return nil, err
			}
			return pressure.Memory(int((now - memoryLimit + someMemory/2) >> 20))
		}),
		held(corev1.NodePIDPressure, "pid.available", fmt.Sprint(tasksLimit), func() (*pressure.Pressure, error) {
			now, err := pressure.AvailableTasks()
			if err != nil {
				return nil, err
			}
			return pressure.Tasks(int(now - tasksLimit + someTasks/2))
		}),
		{
			condition: corev1.NodeDiskPressure, signal: "nodefs.available", limit: "10%",
			press: func() error { return disk.Fill(50 << 20) }, release: disk.Empty,
		},
	}, nil
}

// held is a load of something that is held until it is released.
func held(condition corev1.NodeConditionType, signal, limit string, hold func() (*pressure.Pressure, error)) *load {
	var p *pressure.Pressure
	return &load{
		condition: condition, signal: signal, limit: limit,
		press:   func() (err error) { p, err = hold(); return err },
		release: func() error { return p.Release() },
	}
}

// thresholds are the limits of all loads, and some that nothing comes near to.
func thresholds(loads []*load) map[string]string {
	all := map[string]string{"nodefs.inodesFree": "1%", "imagefs.available": "1%", "imagefs.inodesFree": "1%"}
	for _, l := range loads {
		all[l.signal] = l.limit
	}
	return all
}

// pressAndRelease puts the node under every pressure and takes it all away again.
// Our conditions are to follow at once, and the kubelet's own do.
func (s *stage) pressAndRelease(t *testing.T, meanwhile func()) {
	t.Helper()
	for _, phase := range []struct {
		what   string
		status corev1.ConditionStatus
		do     func(*load) error
	}{
		{"press", corev1.ConditionTrue, func(l *load) error { return l.press() }},
		{"release", corev1.ConditionFalse, func(l *load) error { return l.release() }},
	} {
		begun := map[*load]time.Time{}
		for _, l := range s.loads {
			begun[l] = time.Now()
			if err := phase.do(l); err != nil {
				t.Fatal(err)
			}
			if phase.status == corev1.ConditionTrue {
				t.Cleanup(func() { _ = l.release() }) // once more, if the test ends early
			}
		}
		for _, l := range s.loads {
			took := s.wait(t, ours, begun[l], nodewatch.Has(l.own(), phase.status)).Sub(begun[l])
			theirs := s.wait(t, patience, begun[l], nodewatch.Has(l.condition, phase.status)).Sub(begun[l])
			fmt.Printf("RESULT %s_%s_to_%s=%.2f s peer=kubelet:%.2f\n", phase.what, l.condition, phase.status, took.Seconds(), theirs.Seconds())
		}
		if phase.status == corev1.ConditionTrue {
			meanwhile()
			// A write is saved up for every ten seconds: one for the first release,
			// and one for the others, which come within half a second of it.
			time.Sleep(time.Until(begun[s.loads[len(s.loads)-1]].Add(2*refill + time.Second)))
		}
	}
}

// wantLead waits until nodeprobe has counted an episode of each pressure which the
// kubelet saw too, and wants to have been first.
func (s *stage) wantLead(t *testing.T) {
	t.Helper()
	for _, l := range s.loads {
		s.eventually(t, "the kubelet's "+string(l.condition)+" is compared with ours", func() error {
			metrics, err := agent.ReadMetrics(t.Context(), s.metricsAddress())
			if err != nil {
				return err
			}
			label := fmt.Sprintf("{condition=%q", l.condition)
			both, alone := metrics["nodeprobe_shadow_episodes_total"+label+`,seen_by="both"}`], metrics["nodeprobe_shadow_episodes_total"+label+`,seen_by="kubelet"}`]
			sum, count := metrics["nodeprobe_shadow_lead_seconds_sum"+label+"}"], metrics["nodeprobe_shadow_lead_seconds_count"+label+"}"]
			if both < 1 || alone > 0 || count < 1 || sum <= 0 {
				return fmt.Errorf("%v episodes seen by both, %v by the kubelet alone, %v leads of %v s", both, alone, count, sum)
			}
			fmt.Printf("RESULT lead_%s=%.2f s\n", l.condition, sum/count)
			return nil
		})
	}
}

// within is a context of the test that ends earlier.
func within(t *testing.T, limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

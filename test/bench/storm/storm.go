package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

const (
	// The crossings come one after another once the storm has settled.
	settling, between = 6 * time.Second, 6 * time.Second
	// A storm rages until both nodes have shown everything, within these bounds; the
	// hog ends it by itself at the limit.
	least, most, limit = 25 * time.Second, 38 * time.Second, 60 * time.Second
	// memoryMargin is how far the limit of memory.available lies below the least of a storm.
	memoryMargin = 12 * mi
	// thrashing is the share of a storm in which some task has to wait for memory.
	thrashing = 0.15
)

// crossing is one of a limit that both have, and when each Node showed it: never, if
// that is zero.
type crossing struct {
	condition corev1.NodeConditionType
	pressure.Crossing
	err     error // there was none
	seen    map[string]time.Time
	noticed time.Time // by nodeprobe, as its log has it
}

// after is how long a Node took, or, if it showed nothing, how long the storm lasted.
func (c *crossing) after(name string, end time.Time) (took time.Duration, seen bool) {
	if at := c.seen[name]; !at.IsZero() {
		return at.Sub(c.Above), true
	}
	return end.Sub(c.Above), false
}

// plan is what happens in a storm, once it has settled.
type plan struct {
	act     func() // first
	crossed []corev1.NodeConditionType
}

// result is what one storm was like.
type result struct {
	begin, end time.Time
	some, full float64 // shares of the time in which tasks waited for memory
	crossings  []*crossing
	scrapes    map[string][]scrape
	gaps       map[string]time.Duration
	faults     map[string]int64
	available  []int64 // memory.available, as it was
	killed     bool    // the hog was
}

func (s *stage) subjects() []*subject { return []*subject{s.ours, s.kubelet, s.exporter} }

// calibrate finds a limit for memory.available that a storm stays above by itself.
func (s *stage) calibrate() {
	k := s.startKubelet()
	s.startOurs(s.spec())
	r := s.blow(plan{})
	highest, lowest := slices.Max(r.available), slices.Min(r.available)
	s.Logf("memory.available falls from %d to %d MiB in a storm (PSI some %.0f %%, full %.0f %%, hog killed: %t)",
		highest/mi, lowest/mi, 100*r.some, 100*r.full, r.killed)
	s.memory = (lowest - memoryMargin) / mi * mi
	s.agent.Stop()
	must.OK(s, k.Stop())
}

// blow makes a storm.
func (s *stage) blow(p plan) *result {
	s.calm(s.ours, s.kubelet)
	s.afford(&result{}, 2)
	r := &result{scrapes: map[string][]scrape{}, gaps: map[string]time.Duration{}, faults: map[string]int64{}}
	for _, x := range s.subjects() {
		r.faults[x.name] = -must.Get(majorFaults(x.pid))(s)
	}
	above := int64(0)
	if slices.Contains(p.crossed, corev1.NodeMemoryPressure) {
		above = s.memory
	}
	must.OK(s, s.weather.Begin(above, limit))
	r.begin = time.Now()
	some, full, err := stalled()
	must.OK(s, err)
	done, mu := make(chan struct{}), sync.Mutex{}
	var scrapers sync.WaitGroup
	for _, x := range []*subject{s.ours, s.exporter} {
		scrapers.Go(func() {
			all := scrapeUntil(s.Context(), done, x.metrics)
			mu.Lock()
			defer mu.Unlock()
			r.scrapes[x.name] = all
		})
	}
	s.sleep(r, settling+rand.N(time.Second))
	if p.act != nil {
		p.act()
	}
	for _, condition := range p.crossed {
		s.afford(r, 1)
		r.crossings = append(r.crossings, s.cross(condition))
		s.sleep(r, between)
	}
	// Without crossings it is a storm to find its strength.
	for time.Since(r.begin) < most && (time.Since(r.begin) < least || len(p.crossed) == 0 || !s.shown(r)) {
		s.sleep(r, 200*time.Millisecond)
	}
	r.end = time.Now()
	someNow, fullNow, err := stalled()
	close(done)
	for _, x := range s.subjects() {
		r.faults[x.name] += must.Get(majorFaults(x.pid))(s)
		r.gaps[x.name] = s.leases.gap(x.name, r.begin, r.end)
	}
	if err := s.weather.End(); errors.Is(err, pressure.ErrHogKilled) {
		r.killed = true
	} else {
		must.OK(s, err)
	}
	must.OK(s, errors.Join(err, s.fs.Empty()))
	scrapers.Wait()
	lasted := r.end.Sub(r.begin).Seconds()
	r.some, r.full = (someNow-some).Seconds()/lasted, (fullNow-full).Seconds()/lasted
	s.shown(r)
	for _, line := range must.Get(s.agent.Log())(s) {
		for _, c := range r.crossings {
			if c.noticed.IsZero() && line.Time.After(c.Above) && line.Msg == "condition changed" && strings.Contains(line.Line, fmt.Sprintf(`"condition":%q`, c.condition)) {
				c.noticed = line.Time
			}
		}
	}
	return r
}

// afford waits until nodeprobe may post so many changes at once, for a time: what is more
// waits in the calm too, and is none of a storm's doing.
func (s *stage) afford(r *result, posts int) {
	for begin := time.Now(); agent.PostsLeft(must.Get(s.agent.Log())(s), time.Now()) < posts && time.Since(begin) < 10*time.Second; {
		s.sleep(r, 100*time.Millisecond)
	}
}

func (s *stage) cross(condition corev1.NodeConditionType) *crossing {
	c := &crossing{condition: condition, seen: map[string]time.Time{}}
	if nodewatch.Has(condition, corev1.ConditionTrue)(s.ours.history.Last()) {
		c.err = fmt.Errorf("%s was True before", condition)
		return c
	}
	switch condition {
	case corev1.NodePIDPressure:
		c.Crossing, c.err = s.weather.CrossTasks(s.tasks)
	case corev1.NodeMemoryPressure:
		c.Crossing, c.err = s.weather.CrossMemory(s.memory)
	default:
		c.Above = time.Now()
		c.err = s.fs.Fill(diskLeft)
		c.Below = time.Now()
	}
	return c
}

// shown notes what the Nodes have shown by the end of a storm, and reports whether that
// is everything.
func (s *stage) shown(r *result) bool {
	all := true
	for _, c := range r.crossings {
		for _, x := range []*subject{s.ours, s.kubelet} {
			for _, v := range x.history.All() {
				inTime := v.At.After(c.Above) && (r.end.IsZero() || v.At.Before(r.end))
				if c.seen[x.name].IsZero() && inTime && v.Node != nil && nodewatch.Has(c.condition, corev1.ConditionTrue)(v.Node) {
					c.seen[x.name] = v.At
				}
			}
			all = all && (c.err != nil || !c.seen[x.name].IsZero())
		}
	}
	return all
}

// sleep fails if what is looked at ends meanwhile, and notes what is available.
func (s *stage) sleep(r *result, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		for _, x := range s.subjects() {
			s.SleepBeside(x.exited, min(50*time.Millisecond, time.Until(end)))
		}
		now := must.Get(pressure.AvailableMemory())(s)
		r.available = append(r.available, now)
	}
}

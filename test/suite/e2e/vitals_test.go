package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
)

// vitals is what a process that leaks has more and more of.
type vitals struct {
	rss, anon, file            int64 // bytes
	goroutines, threads, files int64
}

// counts returns what is counted in pieces.
func (v vitals) counts() map[string]int64 {
	return map[string]int64{"goroutines": v.goroutines, "threads": v.threads, "open files": v.files}
}

func (v vitals) String() string {
	const mib = 1 << 20
	return fmt.Sprintf("RSS %.2f MiB (anonymous %.2f, files %.2f), %d goroutines, %d threads, %d open files",
		float64(v.rss)/mib, float64(v.anon)/mib, float64(v.file)/mib, v.goroutines, v.threads, v.files)
}

func readVitals(a *agent.Agent) (v vitals, err error) {
	s, err := footprint.Read(a.PID())
	if err != nil {
		return v, err
	}
	v.rss, v.anon, v.file = s.RSS, s.RSSAnon, s.RSSFile
	goroutines, err := a.Metric(context.Background(), "go_goroutines")
	if err != nil {
		return v, err
	}
	v.goroutines = int64(goroutines)
	for dir, n := range map[string]*int64{"task": &v.threads, "fd": &v.files} {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", a.PID(), dir))
		if err != nil {
			return v, err
		}
		*n = int64(len(entries))
	}
	return v, nil
}

// monitor looks at a process once a second.
type monitor struct {
	mu  sync.Mutex // guards the rest
	all []look
	err error
}

type look struct {
	at time.Time
	vitals
}

// watchVitals looks until the test ends.
func watchVitals(t *testing.T, a *agent.Agent) *monitor {
	m := &monitor{}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			v, err := readVitals(a)
			m.mu.Lock()
			m.all = append(m.all, look{time.Now(), v})
			m.err = err
			m.mu.Unlock()
			select {
			case <-tick.C:
			case <-t.Context().Done():
			case <-a.Exited():
			}
			if err != nil || t.Context().Err() != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { <-ended })
	return m
}

// between returns the medians and the largest of each figure over a time, and how
// many looks there were.
func (m *monitor) between(t *testing.T, from, to time.Time) (median, most vitals, looks int) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		t.Fatal(m.err)
	}
	var during []vitals
	for _, l := range m.all {
		if l.at.After(from) && l.at.Before(to) {
			during = append(during, l.vitals)
		}
	}
	if len(during) == 0 {
		t.Fatalf("nobody has looked between %s and %s", from, to)
	}
	pick := func(field func(*vitals) *int64) {
		values := make([]int64, len(during))
		for i := range during {
			values[i] = *field(&during[i])
		}
		slices.Sort(values)
		*field(&median), *field(&most) = values[len(values)/2], values[len(values)-1]
	}
	pick(func(v *vitals) *int64 { return &v.rss })
	pick(func(v *vitals) *int64 { return &v.anon })
	pick(func(v *vitals) *int64 { return &v.file })
	pick(func(v *vitals) *int64 { return &v.goroutines })
	pick(func(v *vitals) *int64 { return &v.threads })
	pick(func(v *vitals) *int64 { return &v.files })
	return median, most, len(during)
}

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// sightings are when each of some objects was seen to change.
type sightings struct {
	mu   sync.Mutex
	seen map[string][]time.Time
}

// sight notes what a watch brings, under the name that key has for it, until the end.
func sight(s *stage, w watch.Interface, err error, key func(runtime.Object) string) *sightings {
	must.OK(s, err)
	s.Cleanup(w.Stop)
	l := &sightings{seen: map[string][]time.Time{}}
	go func() {
		for event := range w.ResultChan() {
			l.mu.Lock()
			name := key(event.Object)
			l.seen[name] = append(l.seen[name], time.Now())
			l.mu.Unlock()
		}
	}()
	return l
}

// first returns when an object was seen first in whose name there is a text.
func (l *sightings) first(text string) (at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, seen := range l.seen {
		if strings.Contains(name, text) {
			return seen[0]
		}
	}
	return at
}

// gap is the longest time between two renewals of which a part lies in a window. One
// that is not over by the end counts as far as it has got.
func (l *sightings) gap(name string, begin, end time.Time) (longest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return longestGap(l.seen[name], begin, end)
}

func longestGap(renewals []time.Time, begin, end time.Time) (longest time.Duration) {
	last := begin
	for _, t := range append(slices.Clip(renewals), end) {
		if t.After(end) {
			t = end
		}
		if t.After(begin) {
			longest = max(longest, t.Sub(last))
		}
		last = t
	}
	return longest
}

// scrape is one of /metrics. One that fails, or is not over by the end of the storm, has
// taken at least so long.
type scrape struct {
	at   time.Time
	took time.Duration
}

const (
	scrapeInterval = time.Second
	scrapeTimeout  = 30 * time.Second
)

// scrapeUntil scrapes once a second until done is closed.
func scrapeUntil(ctx context.Context, done <-chan struct{}, url string) (all []scrape) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-done:
			cancel()
		case <-ctx.Done():
		}
	}()
	for ctx.Err() == nil {
		begin := time.Now()
		one, cancel := context.WithTimeout(ctx, scrapeTimeout)
		_, err := footprint.Scrape(one, url)
		cancel()
		// Of one that has just begun in the end nothing is known.
		if took := time.Since(begin); err == nil || took > scrapeInterval || ctx.Err() == nil {
			all = append(all, scrape{begin, took})
		}
		select {
		case <-time.After(time.Until(begin.Add(scrapeInterval))):
		case <-done:
		}
	}
	return all
}

// majorFaults is how often a process has waited for a page to be read.
func majorFaults(pid int) (n int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The command, in parentheses, may contain anything.
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	_, err = fmt.Sscan(f[9], &n)
	return n, err
}

// stalled is for how long some task, and for how long all, have waited for memory
// since the machine was started.
func stalled() (some, full time.Duration, err error) {
	text, err := os.ReadFile("/proc/pressure/memory")
	for line := range strings.Lines(string(text)) {
		var avg [3]float64
		var total int64
		var kind string
		if _, err := fmt.Sscanf(line, "%s avg10=%f avg60=%f avg300=%f total=%d", &kind, &avg[0], &avg[1], &avg[2], &total); err != nil {
			return 0, 0, err
		}
		if kind == "some" {
			some = time.Duration(total) * time.Microsecond
		} else {
			full = time.Duration(total) * time.Microsecond
		}
	}
	return some, full, err
}

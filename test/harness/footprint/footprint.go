// Package footprint measures what running processes cost: memory, CPU time and
// wake-ups, over a time in which their metrics are scraped as Prometheus would.
package footprint

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// Sample is one look at a process.
type Sample struct {
	// RSS is the resident memory in bytes, RSSAnon and RSSFile its parts: what
	// the process allocated, and what the kernel could read again from files
	// (mostly the program itself).
	RSS, RSSAnon, RSSFile int64
	// CPU is the time that all threads of the process have run, also those that
	// have ended.
	CPU time.Duration
	// Switches is how often the threads that now exist have gone to sleep, which
	// is how often they were woken.
	Switches int64
}

// Read looks at a process.
func Read(pid int) (Sample, error) {
	var s Sample
	proc := fmt.Sprintf("/proc/%d", pid)
	if err := scanFigures(proc+"/status", map[string]*int64{"VmRSS": &s.RSS, "RssAnon": &s.RSSAnon, "RssFile": &s.RSSFile}); err != nil {
		return s, err
	}

	// The CPU clock of another process, as clock_getcpuclockid(3) makes its ID.
	// In nanoseconds, where /proc/PID/stat counts ticks of 10 ms, as much as may
	// be spent in a minute; /proc/PID/schedstat is about one thread only.
	const cpuClockSched = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|cpuClockSched), &ts); err != nil {
		return s, fmt.Errorf("read CPU clock of process %d: %w", pid, err)
	}
	s.CPU = time.Duration(ts.Nano())

	threads, err := filepath.Glob(proc + "/task/*/status")
	if err != nil {
		return s, err
	}
	for _, thread := range threads {
		var switches int64
		// A thread may end between the two; then it is none that now exists.
		if err := scanFigures(thread, map[string]*int64{"voluntary_ctxt_switches": &switches}); err == nil {
			s.Switches += switches
		}
	}
	return s, nil
}

// scanFigures reads the named figures from a file with one in each line; all have to be
// there. Those in kB become bytes.
func scanFigures(file string, figures map[string]*int64) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read figures: %w", err)
	}
	found := 0
	for line := range bytes.Lines(data) {
		// "VmRSS:	9784 kB", "inactive_file 4096", "processes 12".
		fields := bytes.Fields(line)
		if len(fields) < 2 {
			continue
		}
		if figure := figures[string(bytes.TrimSuffix(fields[0], []byte(":")))]; figure != nil {
			if *figure, err = strconv.ParseInt(string(fields[1]), 10, 64); err != nil {
				return fmt.Errorf("parse %s of %s: %w", fields[0], file, err)
			}
			if len(fields) > 2 && string(fields[2]) == "kB" {
				*figure <<= 10
			}
			found++
		}
	}
	if found != len(figures) {
		return fmt.Errorf("read figures: %s lacks some (has the process ended?)", file)
	}
	return nil
}

const (
	scrapeInterval = 15 * time.Second
	// scrapeTimeout is Prometheus' default.
	scrapeTimeout  = 10 * time.Second
	sampleInterval = time.Second
)

// Subject is a process to measure.
type Subject struct {
	Name string
	PID  int
	// MetricsURL is scraped every 15 s. Empty means that it is left alone.
	MetricsURL string
	// Cgroup is the directory of the memory cgroup that holds it and nothing else;
	// empty if there is none.
	Cgroup string
}

// Cost is what a subject has cost over the time.
type Cost struct {
	// RSS, RSSAnon and RSSFile are medians of one sample a second, in bytes;
	// RSSMax is the largest.
	RSS, RSSAnon, RSSFile, RSSMax int64
	// CPU is the CPU time per minute.
	CPU time.Duration
	// Wakeups is how many times a second a thread woke up.
	Wakeups float64
	// Scrapes is how often the metrics were read, Missed how often that failed or took
	// too long, ScrapeBytes the size of the last answer, as it is without compression.
	Scrapes, Missed int
	ScrapeBytes     int64
}

// Measure watches all subjects over the same window.
func Measure(t testing.TB, window time.Duration, subjects []Subject) map[string]Cost {
	t.Helper()
	samples := make(map[string][]Sample, len(subjects))
	costs := make(map[string]Cost, len(subjects))
	look := func() {
		for _, s := range subjects {
			samples[s.Name] = append(samples[s.Name], must.Get(Read(s.PID))(t))
		}
	}
	scrapeAll := func() {
		for _, s := range subjects {
			if s.MetricsURL != "" {
				cost := costs[s.Name]
				cost.scrape(t, s)
				costs[s.Name] = cost
			}
		}
	}

	begin := time.Now()
	look()
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	end := time.NewTimer(window)
	defer end.Stop()
	// In the middle of each interval, so that a window of n intervals holds n
	// scrapes with all that follows from them.
	nextScrape := begin.Add(scrapeInterval / 2)
	for running := true; running; {
		select {
		case <-t.Context().Done():
			t.Fatal(context.Cause(t.Context()))
		case <-tick.C:
		case <-end.C:
			running = false
		}
		if running && !time.Now().Before(nextScrape) {
			nextScrape = nextScrape.Add(scrapeInterval)
			scrapeAll()
		}
		look()
	}
	took := time.Since(begin)
	for _, s := range subjects {
		costs[s.Name] = costs[s.Name].with(samples[s.Name], took)
	}
	return costs
}

// scrape counts one that fails: the machine may be short of something just then, and a
// process that has ended is noticed by what looks at it next.
func (c *Cost) scrape(t testing.TB, s Subject) {
	ctx, cancel := context.WithTimeout(t.Context(), scrapeTimeout)
	defer cancel()
	size, err := Scrape(ctx, s.MetricsURL)
	if err != nil {
		c.Missed++
		t.Logf("%s: %v", s.Name, err)
		return
	}
	c.Scrapes, c.ScrapeBytes = c.Scrapes+1, size
}

// with adds the figures that follow from the samples.
func (c Cost) with(samples []Sample, took time.Duration) Cost {
	pick := func(field func(Sample) int64) []int64 {
		values := make([]int64, len(samples))
		for i, s := range samples {
			values[i] = field(s)
		}
		slices.Sort(values)
		return values
	}
	middle := len(samples) / 2
	rss := pick(func(s Sample) int64 { return s.RSS })
	c.RSS, c.RSSMax = rss[middle], rss[len(rss)-1]
	c.RSSAnon = pick(func(s Sample) int64 { return s.RSSAnon })[middle]
	c.RSSFile = pick(func(s Sample) int64 { return s.RSSFile })[middle]
	first, last := samples[0], samples[len(samples)-1]
	c.CPU = time.Duration(float64(last.CPU-first.CPU) / took.Minutes())
	c.Wakeups = float64(last.Switches-first.Switches) / took.Seconds()
	return c
}

// Scrape reads metrics as Prometheus does, over a connection that is kept, and
// returns the size of the answer.
func Scrape(ctx context.Context, url string) (size int64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, fmt.Errorf("scrape: %w", err)
	}
	req.Header.Set("Accept", "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("scrape: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("scrape %s: %s", url, resp.Status)
	}
	if size, err = io.Copy(io.Discard, resp.Body); err != nil {
		return 0, fmt.Errorf("scrape %s: %w", url, err)
	}
	return size, nil
}

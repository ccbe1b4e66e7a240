package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

// screen shows a live table in a terminal, with the latest log lines below it.
type screen struct {
	out io.Writer

	mu    sync.Mutex // guards lines
	lines []string
}

const (
	screenLines  = 8
	clearToEnd   = "\x1b[J"
	cursorHome   = "\x1b[H"
	clearLine    = "\x1b[K"
	screenPeriod = time.Second
)

func newScreen(out io.Writer) *screen { return &screen{out: out} }

// logs returns where log lines go while the table is shown.
func (s *screen) logs() io.Writer { return logTail{s} }

type logTail struct{ *screen }

func (t logTail) Write(line []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, string(bytes.TrimRight(line, "\n")))
	if extra := len(t.lines) - screenLines; extra > 0 {
		t.lines = t.lines[extra:]
	}
	return len(line), nil
}

// run redraws the table every second until ctx ends. Somebody is looking, so it
// asks for a sample each time.
func (s *screen) run(ctx context.Context, d *daemon, cfg *config, p *policy) {
	ticker := time.NewTicker(screenPeriod)
	defer ticker.Stop()
	fmt.Fprint(s.out, cursorHome+clearToEnd)
	for {
		s.draw(d, cfg, p)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			d.sampler.Wake(probe.CauseView)
		}
	}
}

func (s *screen) draw(d *daemon, cfg *config, p *policy) {
	facts := d.monitor.facts()
	if facts.Snapshot.Time.IsZero() {
		return
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "nodeprobe %s, mode %s, node %s, %s", release, cfg.Mode, p.nodeName, facts.Snapshot.Time.Format(time.DateTime))
	if cfg.WebListenAddress != "" {
		fmt.Fprintf(&b, ", http://%s/metrics", cfg.WebListenAddress)
	}
	b.WriteString("   (Ctrl-C ends)\n\n")
	v := newView(&facts.Snapshot, facts.Verdicts[:], p.thresholds, d.sensor.Hooks())
	_ = writeTable(&b, &v) // to memory
	b.WriteByte('\n')
	s.mu.Lock()
	for _, line := range s.lines {
		fmt.Fprintln(&b, line)
	}
	s.mu.Unlock()
	text := bytes.ReplaceAll(b.Bytes(), []byte("\n"), []byte(clearLine+"\n"))
	fmt.Fprintf(s.out, "%s%s%s", cursorHome, text, clearToEnd)
}

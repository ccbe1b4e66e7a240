package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// screen shows a live table in a terminal, with the latest log lines below it.
type screen struct {
	out  io.Writer
	size func() (width, height int) // 0 is without bound

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

func newScreen(out io.Writer) *screen {
	return &screen{out: out, size: func() (int, int) { return terminalSize(out) }}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// terminalSize is asked at each drawing: windows change.
func terminalSize(w io.Writer) (width, height int) {
	if f, ok := w.(*os.File); ok {
		width, height, _ = term.GetSize(int(f.Fd())) // what is no terminal has no bounds
	}
	return width, height
}

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

// start redraws what table writes every second, until stop is called, which
// draws it a last time. Somebody is looking, so it asks for a sample each time.
func (s *screen) start(table func(io.Writer), sample func()) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var drawing sync.WaitGroup
	drawing.Go(func() {
		ticker := time.NewTicker(screenPeriod)
		defer ticker.Stop()
		fmt.Fprint(s.out, cursorHome+clearToEnd)
		for {
			s.draw(table)
			select {
			case <-ctx.Done():
				s.draw(table)
				return
			case <-ticker.C:
				sample()
			}
		}
	})
	return func() {
		cancel()
		drawing.Wait()
	}
}

// draw writes the table and the log lines over what was there before. Lines are
// cut to the terminal: one that wraps, or a screen that scrolls, would garble
// what is drawn next.
func (s *screen) draw(table func(io.Writer)) {
	var b strings.Builder
	table(&b)
	b.WriteByte('\n')
	s.mu.Lock()
	for _, line := range s.lines {
		b.WriteString(line + "\n")
	}
	s.mu.Unlock()

	width, height := s.size()
	var text strings.Builder
	text.WriteString(cursorHome)
	drawn := 0
	for line := range strings.Lines(b.String()) {
		if drawn++; height > 0 && drawn >= height {
			break // the cursor takes up a line too
		}
		// Clearing the rest of a line that is full would clear its last rune.
		text.WriteString(oneLine(strings.TrimSuffix(line, "\n"), width-1))
		text.WriteString(clearLine + "\n")
	}
	text.WriteString(clearToEnd)
	_, _ = io.WriteString(s.out, text.String()) // a terminal that is gone ends us by other means
}

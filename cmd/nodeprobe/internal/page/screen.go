package page

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

	"github.com/nodeprobe/nodeprobe/internal/printable"
)

// Screen draws a live table in a terminal, with the latest log lines below it. It is
// safe for concurrent use.
type Screen struct {
	out  io.Writer
	size func() (width, height int) // 0 is unlimited

	mu    sync.Mutex // guards lines
	lines []string
}

const (
	screenLines = 8
	clearToEnd  = "\x1b[J"
	cursorHome  = "\x1b[H"
	clearLine   = "\x1b[K"

	// stopTimeout is how long the end waits for the last drawing.
	stopTimeout = time.Second
)

// NewScreen returns a Screen that draws on out, which [IsTerminal] or is wanted anyway.
func NewScreen(out io.Writer) *Screen {
	return &Screen{out: out, size: func() (int, int) { return terminalSize(out) }}
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// terminalSize is called for each drawing: a window may be resized.
func terminalSize(w io.Writer) (width, height int) {
	if f, ok := w.(*os.File); ok {
		width, height, _ = term.GetSize(int(f.Fd())) // unlimited if it is no terminal
	}
	return width, height
}

// Logs returns the writer for log lines while the table is shown, one line for each
// Write.
func (s *Screen) Logs() io.Writer { return logTail{s} }

type logTail struct{ *Screen }

func (t logTail) Write(line []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, string(bytes.TrimRight(line, "\n")))
	if extra := len(t.lines) - screenLines; extra > 0 {
		t.lines = t.lines[extra:]
	}
	return len(line), nil
}

// Start draws the table of a Page now and then every second, and asks for a sample before
// each drawing but the first. The url is that of the status page, or empty. The caller
// must call stop, which draws a last time and waits for that, but not for long.
func (s *Screen) Start(p *Page, url string) (stop func()) {
	return s.start(func(b *strings.Builder) { p.table(b, url) }, p.Sample)
}

func (s *Screen) start(table func(*strings.Builder), sample func()) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	drawn := make(chan struct{})
	go func() {
		defer close(drawn)
		ticker := time.NewTicker(lookPeriod)
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
	}()
	return func() {
		cancel()
		select {
		case <-drawn:
		case <-time.After(stopTimeout): // a terminal may be stopped
		}
	}
}

// draw writes the table and the log lines over the previous drawing. It cuts them to the
// size of the terminal: a line that wraps, or a screen that scrolls, would garble the
// next drawing.
func (s *Screen) draw(table func(*strings.Builder)) {
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
			break // the last line is for the cursor
		}
		// One column stays free: clearing the rest of a full line would clear its last rune.
		text.WriteString(printable.Line(strings.TrimSuffix(line, "\n"), width-1))
		text.WriteString(clearLine + "\n")
	}
	text.WriteString(clearToEnd)
	_, _ = io.WriteString(s.out, text.String()) // if the terminal is gone, SIGHUP ends the process
}

package page

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/nodeprobe/nodeprobe/internal/printable"
)

// drawn draws once on a terminal of that size, and returns the lines.
func drawn(t *testing.T, s *Screen, width, height int, table func(*strings.Builder)) []string {
	t.Helper()
	var out bytes.Buffer
	s.out, s.size = &out, func() (int, int) { return width, height }
	s.draw(table)
	text, home := strings.CutPrefix(out.String(), cursorHome)
	text, end := strings.CutSuffix(text, clearToEnd)
	if !home || !end {
		t.Errorf("does not start at home, or does not clear the rest: %q", out.String())
	}
	var lines []string
	for line := range strings.Lines(text) {
		line, cleared := strings.CutSuffix(line, clearLine+"\n")
		if !cleared {
			t.Errorf("the rest of %q is not cleared", line)
		}
		if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) || !utf8.ValidString(line) {
			t.Errorf("control characters in %q", line)
		}
		if n := utf8.RuneCountInString(line); width > 0 && n >= width {
			t.Errorf("%d runes in a terminal of %d: %q", n, width, line)
		}
		lines = append(lines, line)
	}
	if height > 0 && len(lines) >= height {
		t.Errorf("%d lines in a terminal of %d", len(lines), height)
	}
	return lines
}

// No line wraps and nothing scrolls, on a terminal of any size.
func TestScreenFits(t *testing.T) {
	state := owned(t)
	var drawing strings.Builder // written once, because it contains our own CPU time
	newPage(&state).table(&drawing, "http://127.0.0.1:9732/")
	table := func(b *strings.Builder) { b.WriteString(drawing.String()) }
	s := NewScreen(nil)
	log := slog.New(slog.NewTextHandler(s.Logs(), nil))
	log.Info("a line", "err", errors.New("two\nlines\x1b[2J and "+strings.Repeat("much ", 100)))

	whole := drawn(t, s, 0, 0, table)
	for _, size := range [][2]int{{80, 24}, {200, 100}, {20, 50}, {2, 3}, {1, 1}, {0, 10}, {40, 0}} {
		got := drawn(t, s, size[0], size[1], table)
		for i, line := range got {
			if full := whole[i]; line != full && line != printable.Line(full, size[0]-1) {
				t.Errorf("%v, line %d: %q, want the start of %q", size, i, line, full)
			}
		}
		if size[1] > len(whole) && len(got) != len(whole) {
			t.Errorf("%v: %d lines of %d", size, len(got), len(whole))
		}
	}
	if !strings.Contains(strings.Join(whole, "\n"), "! pressure_io: ") {
		t.Errorf("no errors in\n%s", strings.Join(whole, "\n"))
	}
}

func TestScreenKeepsLogTail(t *testing.T) {
	s := NewScreen(nil)
	log := slog.New(slog.NewJSONHandler(s.Logs(), nil))
	for i := range screenLines + 5 {
		log.Info(fmt.Sprint("line ", i))
	}
	lines := drawn(t, s, 0, 0, func(b *strings.Builder) { b.WriteString("table\n") })
	if len(lines) != 2+screenLines || lines[0] != "table" || lines[1] != "" {
		t.Fatalf("got %q", lines)
	}
	for i, line := range lines[2:] {
		if want := fmt.Sprintf(`"msg":"line %d"`, i+5); !strings.Contains(line, want) {
			t.Errorf("line %d: %s", i, line)
		}
	}
}

func TestScreenDrawsPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := owned(t)
		p := newPage(&state)
		samples := 0
		p.Sample = func() { samples++ }
		var out bytes.Buffer
		stop := NewScreen(&out).Start(p, "http://127.0.0.1:9732/")
		time.Sleep(lookPeriod + time.Millisecond)
		stop()
		if n := strings.Count(out.String(), "node 192.0.2.7, 2026-01-02 03:04:05, http://127.0.0.1:9732/ "); n != 3 || samples != 1 {
			t.Errorf("%d drawings and %d samples, want 3 and 1:\n%s", n, samples, &out)
		}
	})
}

// A Screen draws at once, every second after asking for a sample, and a last time when it
// is stopped: what was logged until then stays on the terminal.
func TestScreenStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := NewScreen(&out)
		var drawings, samples atomic.Int32
		stop := s.start(func(*strings.Builder) { drawings.Add(1) }, func() { samples.Add(1) })
		synctest.Wait()
		if drawings.Load() != 1 || samples.Load() != 0 {
			t.Errorf("at first %d drawings, %d samples", drawings.Load(), samples.Load())
		}
		time.Sleep(2*lookPeriod + time.Millisecond)
		synctest.Wait()
		if drawings.Load() != 3 || samples.Load() != 2 {
			t.Errorf("after two periods %d drawings, %d samples", drawings.Load(), samples.Load())
		}
		fmt.Fprintln(s.Logs(), "goodbye")
		stop()
		if text := out.String(); !strings.HasSuffix(text, "goodbye"+clearLine+"\n"+clearToEnd) {
			t.Errorf("got %q", text)
		}
		time.Sleep(time.Hour)
		if drawings.Load() != 4 {
			t.Errorf("%d drawings, want a last one after stop", drawings.Load())
		}
	})
}

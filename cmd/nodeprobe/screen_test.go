package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
)

// drawn is one drawing on a terminal of that size, as lines.
func drawn(t *testing.T, s *screen, width, height int, table func(io.Writer)) []string {
	t.Helper()
	var out bytes.Buffer
	s.out, s.size = &out, func() (int, int) { return width, height }
	s.draw(table)
	text, home := strings.CutPrefix(out.String(), cursorHome)
	text, end := strings.CutSuffix(text, clearToEnd)
	if !home || !end {
		t.Errorf("does not begin at home, or does not clear the rest: %q", out.String())
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

// Whatever the size of the terminal, no line wraps and nothing scrolls.
func TestScreenFits(t *testing.T) {
	d, _ := testDaemon(t, newTree(t, map[string]string{"proc/pressure/io": ""}), "")
	d.monitor.observe(d.sampler.Sample())
	var drawing bytes.Buffer
	d.writeScreen(&drawing, "http://127.0.0.1:9732/") // once: what it costs to draw is in it
	table := func(w io.Writer) { _, _ = w.Write(drawing.Bytes()) }
	s := newScreen(nil)
	log := newLogger(s.logs(), "text", new(slog.LevelVar))
	log.Info("a line", "err", errors.New("two\nlines\x1b[2J and "+strings.Repeat("much ", 100)))

	whole := drawn(t, s, 0, 0, table)
	for _, size := range [][2]int{{80, 24}, {200, 100}, {20, 50}, {2, 3}, {1, 1}, {0, 10}, {40, 0}} {
		got := drawn(t, s, size[0], size[1], table)
		for i, line := range got {
			if full := whole[i]; line != full && line != oneLine(full, size[0]-1) {
				t.Errorf("%v, line %d: %q, want the beginning of %q", size, i, line, full)
			}
		}
		if size[1] > len(whole) && len(got) != len(whole) {
			t.Errorf("%v: %d lines of %d", size, len(got), len(whole))
		}
	}
	if !strings.Contains(strings.Join(whole, "\n"), "! pressure_io: ") {
		t.Errorf("what cannot be read is not there:\n%s", strings.Join(whole, "\n"))
	}
}

func TestScreenKeepsLogTail(t *testing.T) {
	s := newScreen(nil)
	log := newLogger(s.logs(), "json", new(slog.LevelVar))
	for i := range screenLines + 5 {
		log.Info(fmt.Sprint("line ", i))
	}
	lines := drawn(t, s, 0, 0, func(w io.Writer) { fmt.Fprintln(w, "table") })
	if len(lines) != 2+screenLines || lines[0] != "table" || lines[1] != "" {
		t.Fatalf("got %q", lines)
	}
	for i, line := range lines[2:] {
		if want := fmt.Sprintf(`"msg":"line %d"`, i+5); !strings.Contains(line, want) {
			t.Errorf("line %d: %s", i, line)
		}
	}
}

// It draws at once, and a last time when it stops: what was logged until then
// stays on the screen. It does not draw after that.
func TestScreenStops(t *testing.T) {
	var out logBuffer
	s := newScreen(&out)
	var drawings atomic.Int32
	stop := s.start(func(io.Writer) { drawings.Add(1) }, func() {})
	eventually(t, "a drawing", func() bool { return drawings.Load() > 0 })
	fmt.Fprintln(s.logs(), "goodbye")
	stop()
	if text := out.String(); !strings.HasSuffix(text, "goodbye"+clearLine+"\n"+clearToEnd) {
		t.Errorf("got %q", text)
	}
}

func TestOneLine(t *testing.T) {
	for _, test := range []struct {
		text string
		most int
		want string
	}{
		{"abc", 3, "abc"},
		{"abcd", 3, "ab…"},
		{"äöü", 3, "äöü"},
		{"██████", 4, "███…"},
		{"abc", 1, "…"},
		{"abc", 0, ""},
		{"abc", -1, "abc"},
		{"a\nb\tc\x1bd\x00", -1, "a\ufffdb\ufffdc\ufffdd\ufffd"},
		{"\xff", -1, "\ufffd"},
		{"", 5, ""},
	} {
		if got := oneLine(test.text, test.most); got != test.want {
			t.Errorf("oneLine(%q, %d) = %q, want %q", test.text, test.most, got, test.want)
		}
	}
}

func TestAmount(t *testing.T) {
	for _, test := range []struct {
		n    int64
		unit string
		want string
	}{
		{0, "bytes", "0"},
		{999, "bytes", "999"},
		{1000, "bytes", "0.977Ki"},
		{1 << 10, "bytes", "1Ki"},
		{1023 << 20, "bytes", "0.999Gi"},
		{100 << 20, "bytes", "100Mi"},
		{-1 << 30, "bytes", "-1Gi"},
		{1<<63 - 1, "bytes", "8Ei"},
		{0, "tasks", "0"},
		{32568, "tasks", "32568"},
		{16777216, "inodes", "16777216"},
		{1000, "inodes", "1k"},
	} {
		if got := amount(test.n, test.unit); got != test.want {
			t.Errorf("amount(%d, %s) = %s, want %s", test.n, test.unit, got, test.want)
		}
	}
}

func TestBar(t *testing.T) {
	for _, test := range []struct {
		available, capacity int64
		want                string
	}{
		{50, 100, "██████████··········  50%"},
		{100, 100, "████████████████████ 100%"},
		{0, 100, "····················   0%"},
		{-5, 100, "····················   0%"},
		{200, 100, "████████████████████ 100%"},
		{1, 0, "-"},
	} {
		if got := bar(test.available, test.capacity); got != test.want {
			t.Errorf("bar(%d, %d) = %s", test.available, test.capacity, got)
		}
	}
}

func TestTier(t *testing.T) {
	off, gone := bpf.Hook{Name: "a", Err: bpf.ErrDisabled}, bpf.Hook{Name: "b", Err: errors.New("no BTF")}
	on := bpf.Hook{Name: "c", Attached: true}
	for _, test := range []struct {
		name  string
		hooks []bpf.Hook
		psi   error
		want  [2]string
	}{
		{"everything", []bpf.Hook{on, on}, nil, [2]string{"bpf", ""}},
		{"one program fewer", []bpf.Hook{on, gone}, nil, [2]string{"bpf", "b: no BTF"}},
		{"programs, no PSI", []bpf.Hook{on}, errors.New("no PSI"), [2]string{"bpf", "no PSI"}},
		{"turned off", []bpf.Hook{off, off}, nil, [2]string{"psi", "BPF is turned off by configuration"}},
		{"no programs", []bpf.Hook{gone, gone}, nil, [2]string{"psi", "b: no BTF"}},
		{"nothing", []bpf.Hook{gone}, errors.New("no PSI"), [2]string{"procfs", "b: no BTF; no PSI"}},
		{"no hooks at all", nil, errors.New("no PSI"), [2]string{"procfs", "no PSI"}},
	} {
		var s probe.Snapshot
		s.Pressure[probe.MemoryResource].Err = test.psi
		name, reason := tier(&s, test.hooks)
		if diff := cmp.Diff(test.want, [2]string{name, reason}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

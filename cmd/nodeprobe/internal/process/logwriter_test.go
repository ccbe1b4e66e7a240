package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// gatedWriter is a writer that takes nothing before its gate is closed; nil is no gate.
type gatedWriter struct {
	gate   chan struct{}
	mu     sync.Mutex // guards writes
	writes []string
}

func (g *gatedWriter) Write(b []byte) (int, error) {
	if g.gate != nil {
		<-g.gate
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writes = append(g.writes, string(b))
	return len(b), nil
}

func (g *gatedWriter) text() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.writes, "")
}

func noticeLost(out io.Writer, lost uint64) { fmt.Fprintf(out, "%d lost\n", lost) }

// line is 64 bytes long.
func line(i int) string { return fmt.Sprintf("%063d\n", i) }

func lines(from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		b.WriteString(line(i))
	}
	return b.String()
}

func writeLines(w io.Writer, from, to int) {
	for i := from; i < to; i++ {
		_, _ = io.WriteString(w, line(i))
	}
}

// A writer that does not take a line holds up nobody: what fits is kept, in order, what
// does not is counted, and the count stands where the lines would have been.
func TestLogWriterBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const fits = logBuffer / 64
		out := gatedWriter{gate: make(chan struct{})}
		w := NewLogWriter(&out, noticeLost)
		writeLines(w, 0, 1)
		time.Sleep(time.Millisecond) // its write has begun
		writeLines(w, 1, fits+8)
		if _, err := w.Write([]byte("x\n")); err != nil { // would fit where a longer line did not
			t.Error(err)
		}
		if got := w.Dropped(); got != 8 {
			t.Errorf("%d lines dropped, want 8", got)
		}
		if began := time.Now(); w.Flush(time.Second) || time.Since(began) != time.Second {
			t.Errorf("flushed a writer that takes nothing, after %s", time.Since(began))
		}
		close(out.gate)
		if !w.Flush(time.Second) {
			t.Error("not flushed")
		}
		writeLines(w, 0, 1)
		if !w.Flush(time.Second) {
			t.Error("not flushed again")
		}
		if got, want := out.text(), lines(0, fits+1)+"8 lost\n"+line(0); got != want {
			t.Errorf("%d bytes written, want %d; the end is %q", len(got), len(want), got[max(len(got)-200, 0):])
		}
		if got := gather(t, w.Collector())["nodeprobe_log_lines_dropped_total"].GetMetric()[0].GetCounter().GetValue(); got != 8 {
			t.Errorf("the metric is %v", got)
		}
	})
}

// Each write has whole lines, of no more than a pipe takes at once.
func TestLogWriterWritesWholeLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := gatedWriter{gate: make(chan struct{})}
		w := NewLogWriter(&out, noticeLost)
		long := strings.Repeat("y", 3*logWrite) + "\n"
		want := ""
		for i := range 200 {
			text := strings.Repeat(line(i)[:17], i%7) + "\n"
			if i == 100 {
				text = long
			}
			want += text
			_, _ = io.WriteString(w, text)
		}
		close(out.gate)
		w.Flush(time.Second)
		for _, write := range out.writes {
			if !strings.HasSuffix(write, "\n") || len(write) > logWrite && write != long {
				t.Errorf("wrote %d bytes that end in %q", len(write), write[max(len(write)-20, 0):])
			}
		}
		if len(out.writes) > 20 {
			t.Errorf("%d writes", len(out.writes))
		}
		if out.text() != want {
			t.Error("the lines are others, or in another order")
		}
	})
}

// More lines than fit, of a goroutine that does not let go of the only P, are written all
// the same.
func TestLogWriterBurst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	w := NewLogWriter(io.Discard, noticeLost)
	writeLines(w, 0, 20*logBuffer/64)
	if !w.Flush(time.Minute) || w.Dropped() != 0 {
		t.Errorf("%d lines dropped", w.Dropped())
	}
}

// Many write at once, and no line is lost while the other side keeps up.
func TestLogWriterConcurrent(t *testing.T) {
	var out gatedWriter
	w := NewLogWriter(&out, noticeLost)
	var writers sync.WaitGroup
	const writing, each = 8, 100 // fits even if nothing is written meanwhile
	for range writing {
		writers.Go(func() { writeLines(w, 0, each) })
	}
	writers.Wait()
	if !w.Flush(time.Minute) {
		t.Fatal("not flushed")
	}
	counts := map[string]int{}
	for l := range strings.Lines(out.text()) {
		counts[l]++
	}
	for i := range each {
		if n := counts[line(i)]; n != writing {
			t.Errorf("line %d: %d times", i, n)
		}
	}
	if len(counts) != each || w.Dropped() != 0 {
		t.Errorf("%d different lines, %d dropped", len(counts), w.Dropped())
	}
}

// A line that cannot be written is lost, and the next is tried all the same.
func TestLogWriterFails(t *testing.T) {
	failing := errors.New("no space left on device")
	w := NewLogWriter(writerFunc(func([]byte) (int, error) { return 0, failing }), noticeLost)
	writeLines(w, 0, 3)
	w.Flush(time.Minute)
	if got := w.Dropped(); got != 3 {
		t.Errorf("%d lines dropped, want 3", got)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// A pipe that nobody reads is full after 64 KiB. What comes out of it later are whole lines.
func TestLogWriterFullPipe(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	read, write := os.NewFile(uintptr(fds[0]), "read"), os.NewFile(uintptr(fds[1]), "write") // both block a thread
	defer write.Close()
	w := NewLogWriter(write, noticeLost)
	const n = 8000
	writeLines(w, 0, n)
	dropped := w.Dropped()
	if dropped == 0 || dropped >= n {
		t.Errorf("%d of %d lines dropped", dropped, n)
	}
	var got bytes.Buffer
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = io.Copy(&got, read) })
	if !w.Flush(time.Minute) {
		t.Error("not flushed")
	}
	write.Close()
	reading.Wait()
	read.Close()
	kept := 0
	for l := range strings.Lines(got.String()) {
		if len(l) == 64 {
			kept++
		} else if !strings.HasSuffix(l, " lost\n") {
			t.Errorf("got %q", l)
		}
	}
	if kept+int(w.Dropped()) != n {
		t.Errorf("%d lines came, %d were dropped, of %d", kept, w.Dropped(), n)
	}
}

// A line costs no memory, however many there are.
func TestLogWriterAllocatesNothing(t *testing.T) {
	w := NewLogWriter(io.Discard, noticeLost)
	text := []byte(line(1))
	write := func() {
		for range 10 {
			_, _ = w.Write(text)
		}
	}
	if allocs := testing.AllocsPerRun(1000, write); allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
}

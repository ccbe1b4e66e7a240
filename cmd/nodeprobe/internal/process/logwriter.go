package process

import (
	"bytes"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// logBuffer is how many bytes of log lines wait to be written. Another buffer of that
	// size is being written meanwhile. Their memory is touched as far as it was needed.
	logBuffer = 64 << 10
	// logWrite is PIPE_BUF of pipe(7): a pipe takes so many bytes, or fewer, as one or not
	// at all, so that a process that ends leaves no half of a line.
	logWrite = 4096
	// logTurns is how often a Write lets others run before it drops its lines.
	logTurns = 20
)

// LogWriter passes log lines on to a writer that may block: a pipe that nobody reads, a
// file on a disk that hangs. Its Write never does. Lines that do not fit into its buffer
// are dropped and counted, and the rest keep their order. It is safe for concurrent use.
//
// There is a goroutine only while there are lines to write.
type LogWriter struct {
	out     io.Writer
	notice  func(out io.Writer, lost uint64)
	run     func() // made once: a go statement that calls it allocates nothing
	dropped atomic.Uint64

	mu      sync.Mutex // guards what follows
	pending []byte     // whole lines
	lost    uint64     // lines dropped since pending was full; no line is taken until they are reported
	writing bool       // there is a goroutine
	idle    chan struct{}

	spare []byte // owned by the goroutine
}

// NewLogWriter returns a LogWriter for out. It writes a notice of how many lines were lost
// to out where these lines would have been; the notice must not write to the LogWriter.
func NewLogWriter(out io.Writer, notice func(out io.Writer, lost uint64)) *LogWriter {
	w := &LogWriter{
		out: out, notice: notice,
		pending: make([]byte, 0, logBuffer), spare: make([]byte, 0, logBuffer),
	}
	w.run = w.drain
	return w
}

// Write takes one line, or several, which are kept or dropped as one. The error is nil:
// what has become of a line, nobody knows yet.
func (w *LogWriter) Write(lines []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for turns := 0; turns < logTurns && w.writing && w.lost == 0 && !w.fits(lines); turns++ {
		// With one P, the goroutine has perhaps not run yet, and nothing else is slow.
		w.mu.Unlock()
		runtime.Gosched()
		w.mu.Lock()
	}
	if w.lost > 0 || !w.fits(lines) {
		n := countLines(lines)
		w.lost += n
		w.dropped.Add(n)
	} else {
		w.pending = append(w.pending, lines...)
	}
	if !w.writing {
		w.writing = true
		go w.run()
	}
	return len(lines), nil
}

func (w *LogWriter) fits(lines []byte) bool { return len(w.pending)+len(lines) <= cap(w.pending) }

// drain writes until nothing is pending.
func (w *LogWriter) drain() {
	for {
		w.mu.Lock()
		if len(w.pending) == 0 && w.lost == 0 {
			w.writing = false
			if w.idle != nil {
				close(w.idle)
				w.idle = nil
			}
			w.mu.Unlock()
			return
		}
		lines, lost := w.pending, w.lost
		w.pending, w.spare, w.lost = w.spare[:0], lines, 0
		w.mu.Unlock()
		w.write(lines)
		if lost > 0 {
			w.notice(w.out, lost)
		}
	}
}

// write writes whole lines. Those that cannot be written are lost.
func (w *LogWriter) write(lines []byte) {
	for len(lines) > 0 {
		n := firstWrite(lines)
		if _, err := w.out.Write(lines[:n]); err != nil {
			w.dropped.Add(countLines(lines[:n]))
		}
		lines = lines[n:]
	}
}

// firstWrite returns the length of the lines that are written at once: as many as fit into
// logWrite, or one that is longer.
func firstWrite(lines []byte) int {
	if len(lines) <= logWrite {
		return len(lines)
	}
	if end := bytes.LastIndexByte(lines[:logWrite], '\n'); end >= 0 {
		return end + 1
	}
	if end := bytes.IndexByte(lines, '\n'); end >= 0 {
		return end + 1
	}
	return len(lines)
}

// countLines counts the lines of one Write. The last may lack its end.
func countLines(b []byte) uint64 {
	n := bytes.Count(b, []byte{'\n'})
	if len(b) > 0 && b[len(b)-1] != '\n' {
		n++
	}
	return uint64(n)
}

// Flush waits until everything is written, at most until the timeout, and reports whether
// it is.
func (w *LogWriter) Flush(timeout time.Duration) bool {
	w.mu.Lock()
	if !w.writing {
		w.mu.Unlock()
		return true
	}
	if w.idle == nil {
		w.idle = make(chan struct{})
	}
	idle := w.idle
	w.mu.Unlock()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-idle:
		return true
	case <-timer.C:
		return false
	}
}

// Dropped returns how many lines were lost.
func (w *LogWriter) Dropped() uint64 { return w.dropped.Load() }

// Collector returns a metric of the lines that were lost.
func (w *LogWriter) Collector() prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "nodeprobe_log_lines_dropped_total",
		Help: "Log lines that were dropped, as standard error did not take them in time.",
	}, func() float64 { return float64(w.Dropped()) })
}

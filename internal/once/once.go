// Package once logs each failure once per change. A task that tries again and again logs
// each failure as it comes, under a key that names what fails:
//
//	log.Warn("cannot read volumes", once.Failure, "volumes", "err", err)
//	log.Info("volumes can be read again", once.Recovery, "volumes")
//
// and a logger that Logger has returned drops the repetitions: a failure that reads the
// same as one since the last recovery, and a recovery from no failure. One fault may show
// in several errors by turns, such as a connection that breaks at another point each time,
// so all of them are remembered, not only the last.
package once

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// The keys of the attribute that marks a record; its value names what fails. It is not
// logged.
const (
	// Failure marks a failure.
	Failure = "once.failure"
	// Varying marks a failure whose text may differ each time, as it quotes what was
	// read: another text is logged no sooner than a minute after the last one.
	Varying = "once.varying"
	// Recovery marks the end of all failures.
	Recovery = "once.recovery"
)

const (
	// maxTexts bounds how many failures of one key are remembered, and so how many are
	// logged before a recovery: texts that never repeat are not worth a line each.
	maxTexts = 32
	// varyingInterval is the least time between two texts of a Varying failure.
	varyingInterval = time.Minute
)

// Logger returns a logger that drops repetitions and passes everything else on to log.
// Keys are its own: two loggers know nothing of each other. A logger that Logger has
// returned is returned as it is. It is safe for concurrent use.
func Logger(log *slog.Logger) *slog.Logger {
	if _, ok := log.Handler().(*handler); ok {
		return log
	}
	return slog.New(&handler{next: log.Handler(), memory: &memory{failures: map[string]*failures{}}})
}

// handler drops repetitions.
type handler struct {
	next   slog.Handler
	memory *memory // shared by the handlers that With makes
}

// memory holds the failures since the last recovery, by key.
type memory struct {
	mu       sync.Mutex // guards failures
	failures map[string]*failures
}

// failures are those of one key.
type failures struct {
	texts map[string]bool
	last  time.Time // when the latest text was logged
}

// Enabled implements slog.Handler. A recovery counts even if it is not to be logged.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || h.next.Enabled(ctx, level)
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.next.WithAttrs(attrs), h.memory}
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.next.WithGroup(name), h.memory}
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	var mark slog.Attr
	text := r.Message
	plain := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case Failure, Varying, Recovery:
			mark = a
			return true
		case "err":
			text += ": " + a.Value.String()
		}
		plain.AddAttrs(a)
		return true
	})
	if mark.Key != "" && !h.memory.changed(mark, text, r.Time) || !h.next.Enabled(ctx, r.Level) {
		return nil
	}
	return h.next.Handle(ctx, plain)
}

// changed reports whether a record is worth a line.
func (m *memory) changed(mark slog.Attr, text string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := mark.Value.String()
	f := m.failures[key]
	switch {
	case mark.Key == Recovery:
		delete(m.failures, key)
		return f != nil
	case f == nil:
		f = &failures{texts: map[string]bool{}}
		m.failures[key] = f
	case f.texts[text], len(f.texts) == maxTexts, mark.Key == Varying && now.Sub(f.last) < varyingInterval:
		return false
	}
	f.texts[text], f.last = true, now
	return true
}

// Package once logs each failure once per change. A task that tries again and again logs
// each failure as it comes, under a key that names what fails:
//
//	log.Warn("cannot read volumes", once.Failure("volumes"), "err", err)
//	log.Info("volumes can be read again", once.Recovery("volumes"))
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
)

// maxTexts bounds how many failures of one key are remembered, and so how many are
// logged before a recovery: texts that never repeat are not worth a line each.
const maxTexts = 32

// mark is the value of the attribute that Failure and Recovery return. It is not logged.
type mark struct {
	key      string
	recovery bool
}

const attrKey = "once"

// Failure marks a record as a failure of what key names.
func Failure(key string) slog.Attr { return slog.Any(attrKey, mark{key: key}) }

// Recovery marks a record as the end of all failures of what key names.
func Recovery(key string) slog.Attr { return slog.Any(attrKey, mark{key: key, recovery: true}) }

// Logger returns a logger that drops repetitions and passes everything else on to log.
// Keys are its own: two loggers know nothing of each other. A logger that Logger has
// returned is returned as it is.
func Logger(log *slog.Logger) *slog.Logger {
	if _, ok := log.Handler().(*handler); ok {
		return log
	}
	return slog.New(&handler{next: log.Handler(), seen: &seen{texts: map[string]map[string]bool{}}})
}

// handler drops repetitions.
type handler struct {
	next slog.Handler
	seen *seen // shared by the handlers that With makes
}

// seen are the failures since the last recovery, by key.
type seen struct {
	mu    sync.Mutex // guards texts
	texts map[string]map[string]bool
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.next.WithAttrs(attrs), h.seen}
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.next.WithGroup(name), h.seen}
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	var m mark
	marked := false
	text := r.Message
	plain := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if found, ok := a.Value.Any().(mark); ok {
			m, marked = found, true
			return true
		}
		if a.Key == "err" {
			text += ": " + a.Value.String()
		}
		plain.AddAttrs(a)
		return true
	})
	if !marked {
		return h.next.Handle(ctx, r)
	}
	if !h.seen.changed(m, text) {
		return nil
	}
	return h.next.Handle(ctx, plain)
}

// changed reports whether a record is worth a line.
func (s *seen) changed(m mark, text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	texts := s.texts[m.key]
	switch {
	case m.recovery:
		delete(s.texts, m.key)
		return len(texts) > 0
	case texts[text] || len(texts) == maxTexts:
		return false
	case texts == nil:
		texts = map[string]bool{}
		s.texts[m.key] = texts
	}
	texts[text] = true
	return true
}

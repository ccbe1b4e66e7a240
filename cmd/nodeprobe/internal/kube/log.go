package kube

import (
	"context"
	"log/slog"

	"k8s.io/klog/v2"
)

// LogAtDebug makes client-go log to log, at level debug whatever it thinks the level
// is: its errors are returned to the writers as well, which log each of them once.
func LogAtDebug(log *slog.Logger) { klog.SetSlogLogger(slog.New(atDebug{log.Handler()})) }

// atDebug drops what is below debug: the bodies of all requests and answers, which take
// longer to write down than to make.
type atDebug struct{ slog.Handler }

func (h atDebug) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelDebug && h.Handler.Enabled(ctx, slog.LevelDebug)
}

func (h atDebug) Handle(ctx context.Context, r slog.Record) error {
	if !h.Enabled(ctx, slog.LevelDebug) {
		return nil // klog does not ask before it logs an error
	}
	r.Level = slog.LevelDebug
	return h.Handler.Handle(ctx, r)
}

func (h atDebug) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atDebug{h.Handler.WithAttrs(attrs)}
}

func (h atDebug) WithGroup(name string) slog.Handler { return atDebug{h.Handler.WithGroup(name)} }

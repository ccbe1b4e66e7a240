package once

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// newLog returns a logger and what it has logged since the last call.
func newLog() (*slog.Logger, func() string) {
	var out bytes.Buffer
	log := Logger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}})))
	return log, func() string {
		defer out.Reset()
		return strings.TrimSpace(out.String())
	}
}

func TestOnce(t *testing.T) {
	log, logged := newLog()
	away, refused := errors.New("away"), errors.New("refused")
	for i, step := range []struct {
		log  func(*slog.Logger)
		want string
	}{
		{func(l *slog.Logger) { l.Info("works again", Recovery("a")) }, ""}, // from nothing
		{func(l *slog.Logger) { l.Warn("fails", Failure("a"), "try", 1, "err", away) }, "msg=fails try=1 err=away"},
		{func(l *slog.Logger) { l.Warn("fails", Failure("a"), "try", 2, "err", away) }, ""},
		{func(l *slog.Logger) { l.Warn("fails", Failure("a"), "err", refused) }, "msg=fails err=refused"},
		{func(l *slog.Logger) { l.Warn("fails", Failure("a"), "err", away) }, ""}, // by turns
		{func(l *slog.Logger) { l.Warn("fails", Failure("b"), "err", away) }, "msg=fails err=away"},
		{func(l *slog.Logger) { l.With("node", "n").Warn("fails", Failure("a"), "err", away) }, ""},
		{func(l *slog.Logger) { l.With("node", "n").Info("works again", Recovery("a")) }, `msg="works again" node=n`},
		{func(l *slog.Logger) { l.Info("works again", Recovery("a")) }, ""},
		{func(l *slog.Logger) { l.Warn("fails", Failure("a"), "err", away) }, "msg=fails err=away"},
		{func(l *slog.Logger) { l.Warn("fails", Failure("b"), "err", away) }, ""},
		{func(l *slog.Logger) { l.Warn("something else", "err", away); l.Warn("something else", "err", away) }, "msg=\"something else\" err=away\nmsg=\"something else\" err=away"},
	} {
		step.log(log)
		if got := logged(); got != step.want {
			t.Errorf("step %d: logged %q, want %q", i, got, step.want)
		}
	}
}

// Errors that never repeat are logged up to a bound, and from anew after a recovery.
func TestManyTexts(t *testing.T) {
	log, logged := newLog()
	fail := func() (lines int) {
		for i := range 2 * maxTexts {
			log.Warn("fails", Failure("a"), "err", fmt.Errorf("port %d", i))
		}
		return len(strings.Split(logged(), "\n"))
	}
	if n := fail(); n != maxTexts {
		t.Errorf("%d lines, want %d", n, maxTexts)
	}
	log.Info("works again", Recovery("a"))
	logged()
	if n := fail(); n != maxTexts {
		t.Errorf("%d lines after a recovery, want %d", n, maxTexts)
	}
}

func TestLoggerOfLogger(t *testing.T) {
	log, _ := newLog()
	if Logger(log) != log {
		t.Error("a second layer of memory")
	}
}

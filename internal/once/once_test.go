package once

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
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
		{func(l *slog.Logger) { l.Info("works again", Recovery, "a") }, ""}, // from nothing
		{func(l *slog.Logger) { l.Warn("fails", Failure, "a", "try", 1, "err", away) }, "msg=fails try=1 err=away"},
		{func(l *slog.Logger) { l.Warn("fails", Failure, "a", "try", 2, "err", away) }, ""},
		{func(l *slog.Logger) { l.Warn("fails", Failure, "a", "err", refused) }, "msg=fails err=refused"},
		{func(l *slog.Logger) { l.Warn("fails", Failure, "a", "err", away) }, ""}, // by turns
		{func(l *slog.Logger) { l.Warn("fails", Failure, "b", "err", away) }, "msg=fails err=away"},
		{func(l *slog.Logger) { l.With("node", "n").Warn("fails", Failure, "a", "err", away) }, ""},
		{func(l *slog.Logger) { l.With("node", "n").Info("works again", Recovery, "a") }, `msg="works again" node=n`},
		{func(l *slog.Logger) { l.Info("works again", Recovery, "a") }, ""},
		{func(l *slog.Logger) { l.Warn("fails", Failure, "a", "err", away) }, "msg=fails err=away"},
		{func(l *slog.Logger) { l.Warn("fails", Failure, "b", "err", away) }, ""},
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
			log.Warn("fails", Failure, "a", "err", fmt.Errorf("port %d", i))
		}
		return len(strings.Split(logged(), "\n"))
	}
	if n := fail(); n != maxTexts {
		t.Errorf("%d lines, want %d", n, maxTexts)
	}
	log.Info("works again", Recovery, "a")
	logged()
	if n := fail(); n != maxTexts {
		t.Errorf("%d lines after a recovery, want %d", n, maxTexts)
	}
}

// A failure whose text differs each time is logged once a minute.
func TestVarying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, logged := newLog()
		for i, step := range []struct {
			wait      time.Duration
			err, want string
		}{
			{0, "x", "msg=fails err=x"},
			{varyingInterval - 1, "y", ""},
			{0, "x", ""},
			{1, "y", "msg=fails err=y"},
			{time.Hour, "x", ""},
			{0, "z", "msg=fails err=z"},
		} {
			time.Sleep(step.wait)
			log.Warn("fails", Varying, "a", "err", errors.New(step.err))
			if got := logged(); got != step.want {
				t.Errorf("step %d: logged %q, want %q", i, got, step.want)
			}
		}
	})
}

// A recovery whose level is turned off makes way for the next failure all the same.
func TestRecoveryBelowLevel(t *testing.T) {
	var out bytes.Buffer
	log := Logger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})))
	for range 2 {
		log.Warn("fails", Failure, "a", "err", errors.New("away"))
		log.Info("works again", Recovery, "a")
	}
	if got := out.String(); strings.Count(got, "msg=fails") != 2 || strings.Contains(got, "again") {
		t.Errorf("logged, want two failures:\n%s", got)
	}
}

// Of the same failure from two goroutines, one is logged.
func TestConcurrent(t *testing.T) {
	log, logged := newLog()
	var group sync.WaitGroup
	for _, node := range []string{"a", "b"} {
		group.Go(func() {
			log := log.With("node", node)
			for range 100 {
				log.Warn("fails", Failure, "a", "err", errors.New("away"))
			}
		})
	}
	group.Wait()
	if got := logged(); strings.Count(got, "fails") != 1 {
		t.Errorf("logged, want one line:\n%s", got)
	}
}

func TestLoggerOfLogger(t *testing.T) {
	log, _ := newLog()
	if Logger(log) != log {
		t.Error("a second layer of memory")
	}
}

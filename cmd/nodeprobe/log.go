package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/config"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/process"
)

// flushTimeout is how long the end waits for standard error to take the last lines.
const flushTimeout = time.Second

// newLogWriter returns a writer for log lines that never blocks. That lines were lost is
// a line in the format of the others.
func newLogWriter(stderr io.Writer, format string) *process.LogWriter {
	return process.NewLogWriter(stderr, func(out io.Writer, lost uint64) {
		newLogger(out, format, slog.LevelWarn).Warn("log lines dropped: standard error did not take them in time", "lines", lost)
	})
}

func newLogger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// surviveClosedPipe makes a write to a standard error that nobody has open any more fail
// from now on, where the Go runtime would end the process: a node's Lease does not depend
// on who reads the log. Unlike an ignored signal, programs that are started do not inherit
// this.
func surviveClosedPipe() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// logRemarks logs what is worth knowing about a configuration.
func logRemarks(log *slog.Logger, remarks config.Remarks) {
	for _, r := range remarks {
		log.Log(context.Background(), r.Level, "configuration", "note", r.String())
	}
}

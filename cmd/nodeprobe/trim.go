package main

import (
	"log/slog"
	"time"

	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/process"
)

const (
	// trimAfter is when starting is over: programs are attached, the Node is registered,
	// and everything was done once.
	trimAfter = 5 * time.Second
	// trimAgain is how long after the last call that failed memory is trimmed again:
	// errors take other paths through the program, and each new connection is a TLS
	// handshake. While the API server is away, calls fail more often than that.
	trimAgain = time.Minute
)

// trimmer gives back the memory that only starting, and failing, needed.
type trimmer struct{ timer *time.Timer }

func newTrimmer(log *slog.Logger) trimmer {
	return trimmer{time.AfterFunc(trimAfter, func() {
		if err := process.Trim(); err != nil {
			log.Debug("cannot release memory", "err", err)
		}
	})}
}

// again trims some time after the latest call. It does not block.
func (t trimmer) again() { t.timer.Reset(trimAgain) }

func (t trimmer) stop() { t.timer.Stop() }

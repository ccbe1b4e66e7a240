package nodeprobe

import (
	"errors"
	"log/slog"

	"github.com/nodeprobe/nodeprobe/bpf"
)

// attached reports whether every program that a signal needs is attached.
func attached(hooks []bpf.Hook, signal bpf.Signal) bool {
	found := false
	for _, h := range hooks {
		if h.Signal == signal && !h.Attached {
			return false
		}
		found = found || h.Signal == signal
	}
	return found
}

// logHooks logs once which kernel programs work, with one line per signal that does
// not: its programs fail together. What was turned off is not missing.
func logHooks(log *slog.Logger, hooks []bpf.Hook) {
	var attached int
	seen := map[bpf.Signal]bool{}
	for _, h := range hooks {
		switch {
		case h.Attached:
			attached++
		case errors.Is(h.Err, bpf.ErrDisabled):
			log.Info("kernel programs are turned off by the configuration")
			return
		case !seen[h.Signal]:
			seen[h.Signal] = true
			log.Warn("kernel signal is missing", "signal", h.Signal.String(), "hook", h.Name, "err", h.Err, "remedy", h.Remedy)
		}
	}
	log.Info("kernel programs attached", "attached", attached, "of", len(hooks))
}

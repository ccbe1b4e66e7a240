package process

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"strings"
)

const (
	oomScoreFile = "/proc/self/oom_score_adj"
	// spared is as good as any lower one: 900 of the 1000 points that all memory counts
	// for are taken off. A kubelet gives the pods of system-node-critical -997.
	spared = -900
	// OOMScoreRemedy is what helps where oom_score_adj may not be lowered.
	OOMScoreRemedy = "grant CAP_SYS_RESOURCE, or have nodeprobe started with less: " +
		"OOMScoreAdjust= in a systemd unit, priorityClassName: system-node-critical in a pod"
)

// LowerOOMScore writes adj to /proc/self/oom_score_adj unless it is that low already, and
// returns what it is then. Without CAP_SYS_RESOURCE the kernel refuses what is lower than
// the last that was set with it; the error then wraps [fs.ErrPermission], unless the OOM
// killer will spare this process all the same.
func LowerOOMScore(adj int) (int, error) { return lowerOOMScore(oomScoreFile, adj) }

func lowerOOMScore(file string, adj int) (now int, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	if now, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		return 0, fmt.Errorf("read %s: %w", file, err)
	}
	if now <= adj {
		return now, nil
	}
	err = os.WriteFile(file, []byte(strconv.Itoa(adj)), 0)
	switch {
	case err == nil:
		return adj, nil
	case errors.Is(err, fs.ErrPermission) && now <= spared:
		return now, nil
	}
	return now, err
}

// SpareFromOOM lowers oom_score_adj, and logs what that came to.
func SpareFromOOM(adj int, log *slog.Logger) {
	now, err := LowerOOMScore(adj)
	switch {
	case errors.Is(err, fs.ErrPermission):
		log.Warn("the OOM killer may choose nodeprobe", "oomScoreAdj", now, "configured", adj, "remedy", OOMScoreRemedy)
	case err != nil:
		log.Warn("cannot lower oom_score_adj", "err", err)
	default:
		log.Debug("oom_score_adj", "is", now, "configured", adj)
	}
}

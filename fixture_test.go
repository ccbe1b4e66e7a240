package nodeprobe

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/internal/judge/judgetest"
	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

// treeConfig is an agent's that looks at a tree without BPF. Its thresholds do not
// depend on how full the machine's own disk is, nor its name on a resolver: it is its
// own address.
func treeConfig(t testing.TB, tr *testtree.Tree) (Config, *testtree.Log) {
	t.Helper()
	log := &testtree.Log{}
	cfg := DefaultConfig()
	cfg.NodeName, cfg.DisableBPF = "192.0.2.7", true
	cfg.Procfs, cfg.Sysfs, cfg.Rootfs = tr.Procfs(), tr.Sysfs(), tr.Rootfs()
	cfg.SampleInterval, cfg.TransitionPeriod = time.Hour, 0
	cfg.Thresholds = judgetest.Thresholds(t, map[string]string{"memory.available": "100Mi", "pid.available": "5%", "nodefs.available": "1Ki"})
	cfg.Logger, cfg.Registerer = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), prometheus.NewPedanticRegistry()
	return cfg, log
}

package nodeprobe

import (
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/internal/judge/judgetest"
	"github.com/nodeprobe/nodeprobe/internal/testtree"
	"github.com/nodeprobe/nodeprobe/probe"
)

// In steady state, what follows a sample allocates nothing, whatever the mode.
func TestObserveAllocatesNothing(t *testing.T) {
	for _, test := range []struct {
		name   string
		mode   Mode
		shadow bool
	}{
		{"observe", Observe, false}, {"shadow", Observe, true}, {"augment", Augment, false}, {"own", Own, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg, _ := treeConfig(t, testtree.New(t, nil))
			cfg.Mode, cfg.Shadow, cfg.API = test.mode, test.shadow, newAPIServer(t).config
			cfg.OnSample = func(*probe.Snapshot) {}
			a, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			now := judgetest.At(0, 1<<30)
			observe := func() {
				now.Time = now.Time.Add(10 * time.Millisecond)
				a.observe(now)
			}
			for range 1000 { // until the forecaster's memory is full
				observe()
			}
			if n := testing.AllocsPerRun(1000, observe); n != 0 {
				t.Errorf("%v allocations per sample", n)
			}
		})
	}
}

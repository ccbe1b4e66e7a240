package main

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(m.Run())
}

func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a control plane; -short is set")
	}
	const peer = ` peer=node_exporter:\d+\.\d`
	program.Test(t, run, []string{
		`rss_observe=\d+\.\d MiB budget=17` + peer, `rss_own=\d+\.\d MiB budget=22` + peer, `cpu_own=\d+\.\d ms/min budget=10` + peer,
		`wakeups_own=\d+\.\d /s budget=3` + peer, `binary_size=\d+\.\d MB budget=36` + peer,
	}, "-window", "9s", "-warmup", "100ms")
}

func TestContainerResults(t *testing.T) {
	cost := func(ms, mib int64) map[string]footprint.Cost {
		return map[string]footprint.Cost{ownName: {CPU: time.Duration(ms) * time.Millisecond, RSS: mib << 20}}
	}
	var out strings.Builder
	must.OK(t, program.Run(t.Context(), "test", nil, &out, io.Discard, func(p *program.P) {
		printRatios(p, []footprint.Subject{{Name: ownName}}, 250,
			[]map[string]footprint.Cost{cost(10, 20), cost(90, 20), cost(12, 22)},
			[]map[string]footprint.Cost{cost(15, 21), cost(11, 21), cost(80, 21)})
	}))
	const want = "nodeprobe own: CPU 12.0 -> 15.0 ms/min, RSS 20.00 -> 21.00 MiB\n" +
		"RESULT cpu_own_250_containers=1.250 x budget=1.05\nRESULT rss_own_250_containers=1.050 x budget=1.05\n"
	if out.String() != want {
		t.Errorf("got %s, want %s", &out, want)
	}
}

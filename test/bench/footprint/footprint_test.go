package main

import (
	"fmt"
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
	const figure = `=\d+\.\d `
	program.Test(t, run, []string{
		`rss_observe` + figure + `MiB budget=17` + peer, `rss_own` + figure + `MiB budget=22` + peer, `cpu_own` + figure + `ms/min budget=10` + peer,
		`wakeups_own` + figure + `/s budget=3` + peer, `binary_size` + figure + `MB budget=36` + peer,
		`busy_rss_own` + figure + `MiB budget=22` + peer, `busy_cpu_own` + figure + `ms/min budget=\d+(\.\d+)?` + peer,
	}, "-for", "1m")
}

func TestCauses(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a control plane; -short is set")
	}
	// Long enough for a sample, a renewal and a scrape.
	program.Test(t, run, []string{
		`idle_observe_wakeups=\d+\.\d\d /s budget=3`, `idle_own_wakeups=\d+\.\d\d /s budget=3`, `idle_own_scraped_wakeups=\d+\.\d\d /s budget=3`,
		`idle_observe_cpu=\d+\.\d\d ms/min budget=10`, `idle_own_cpu=\d+\.\d\d ms/min budget=10`,
		`idle_own_wakeups_lease=-?\d+\.\d\d /s`, `idle_own_cpu_scrape=-?\d+\.\d\d ms/min`,
	}, "-causes", "-window", "12s")
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

// A task that does nothing would look good.
func TestWorked(t *testing.T) {
	const wakeups = "nodeprobe_sampler_wakeups_total"
	all := tasks()
	for _, test := range []struct {
		grown   map[string]float64
		scrapes int
		task    task
		idle    bool
	}{
		{map[string]float64{wakeups + `{cause="tick"}`: 1, renewals: 1}, 1, all[5], false},
		{map[string]float64{wakeups + `{cause="stall"}`: 1, renewals: 1}, 1, all[5], false},
		{map[string]float64{"nodeprobe_forks_total": 9, renewals: 1}, 1, all[5], true},
		{map[string]float64{wakeups + `{cause="tick"}`: 1}, 1, all[5], true},
		{map[string]float64{wakeups + `{cause="tick"}`: 1, renewals: 1}, 0, all[5], true},
		{map[string]float64{wakeups + `{cause="tick"}`: 1}, 0, all[1], false},
		{nil, 0, all[0], false},
	} {
		if err := test.task.worked(footprint.Cost{Scrapes: test.scrapes}, test.grown); (err != nil) != test.idle {
			t.Errorf("%s, %v and %d scrapes: %v", test.task.name, test.grown, test.scrapes, err)
		}
	}
}

func TestMarks(t *testing.T) {
	for length, want := range map[time.Duration]string{
		time.Second: "[1s]", time.Minute: "[1m0s]", 2 * time.Minute: "[1m0s 2m0s]", 30 * time.Minute: "[1m0s 5m0s 30m0s]", time.Hour: "[1m0s 5m0s 30m0s 1h0m0s]",
	} {
		if got := fmt.Sprint(marks(length)); got != want {
			t.Errorf("%s: %s, want %s", length, got, want)
		}
	}
}

func TestMachine(t *testing.T) {
	begin := time.Now()
	got := machine{busy: 16, idle: 104, forks: 1200, stalled: 3, rounds: 13, at: begin.Add(time.Minute)}.since(
		machine{busy: 4, idle: 20, forks: 600, rounds: 1, at: begin})
	const want = "CPUs 12 % busy, 10.0 new tasks/s, 5.0 % of the time stalled by memory, 12.0 rounds of work/min"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Nobody reads what an idle machine's budgets would be on a busy one.
func TestFigures(t *testing.T) {
	costs := map[string]footprint.Cost{ownName: {CPU: 30 * time.Millisecond, Wakeups: 2}, peer.Name: {CPU: 50500 * time.Microsecond}}
	memory := map[string]footprint.Memory{ownName: {RSS: 20 << 20}, peer.Name: {RSS: 21 << 20}}
	for load, want := range map[string]string{
		"idle": "RESULT rss_own=20.0 MiB budget=22 peer=node_exporter:21.0\nRESULT cpu_own=30.0 ms/min budget=10 peer=node_exporter:50.5\n" +
			"RESULT wakeups_own=2.0 /s budget=3 peer=node_exporter:0.0\n",
		"busy": "RESULT busy_rss_own=20.0 MiB budget=22 peer=node_exporter:21.0\nRESULT busy_cpu_own=30.0 ms/min budget=25.3 peer=node_exporter:50.5\n" +
			"RESULT busy_wakeups_own=2.0 /s peer=node_exporter:0.0\n",
	} {
		got := ""
		for _, f := range figures(load, costs, memory) {
			if strings.HasSuffix(f.Name, "_own") {
				got += f.String() + "\n"
			}
		}
		if got != want {
			t.Errorf("%s: got\n%s", load, got)
		}
	}
}

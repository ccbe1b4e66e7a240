// Command storm has a machine thrash, and measures what nodeprobe still does on it, beside
// a kubelet and a node_exporter. In each storm the limits of PIDs, disk space and memory are crossed, and
// a watcher clocks when each Node says so; both /metrics are scraped, and gaps between
// Lease renewals and major faults are counted. It prints one RESULT line for each figure.
//
//	go run ./bench/storm              # 10 storms, in 12 minutes
//	go run ./bench/storm -faults      # one with each fault on top
//
// The control plane runs from memory, and this program locks itself. All else is on the
// disk of $TMPDIR. It needs root, a machine without swap, and to be alone on it. Whatever
// it makes or starts is gone when it ends, by ^C too.
package main

import (
	"fmt"
	"regexp"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

func main() {
	pressure.Main()
	program.Main("storm", run)
}

func run(p *program.P) {
	storms := p.Flags.Int("storms", 10, "how many to make")
	faults := p.Flags.Bool("faults", false, "one with each fault instead")
	only := p.Flags.String("only", "", "of the faults, those whose names this `expression` matches")
	binary := p.ParseNodeprobe()
	need.Root(p)
	s := newStage(p, binary)
	must.OK(p, pressure.Lock())
	p.Logf("writing files of 2 GiB, and locking most of the machine's memory")
	s.weather = pressure.NewStorm(p, s.dir, burstTasks)
	s.calibrate()
	if *faults {
		s.memory = 0 // these cross pid.available only
		s.startKubelet()
		s.faults(must.Get(regexp.Compile(*only))(p))
		return
	}
	s.startKubelet()
	s.startOurs(s.spec())
	s.calm(s.ours)
	p.Sleep(rehearsed)
	var all []*result
	rows := []string{head}
	for n := 1; len(all) < *storms && n <= *storms+max(1, *storms/4); n++ { // some repeat what did not thrash
		r := s.blow(plan{crossed: conditions})
		rows = append(rows, r.row(fmt.Sprint(n)))
		p.Logf("%s", rows[len(rows)-1])
		s.explain(r)
		if r.some < thrashing {
			p.Logf("storm %d does not count: some task waited for memory in only %.0f %% of the time", n, 100*r.some)
			continue
		}
		all = append(all, r)
	}
	p.Table(rows...)
	if len(all) == 0 {
		p.Fatal("no storm made the machine thrash")
	}
	p.Print(figures(all))
}

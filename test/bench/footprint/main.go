// Command footprint measures nodeprobe in observe mode, nodeprobe in own mode
// against a real control plane, and node_exporter, side by side and scraped as
// Prometheus would: on a machine that is idle, then on one that is busy. It prints one
// RESULT line for each figure that has a budget.
//
//	go run ./bench/footprint                       # builds all three first; takes an hour
//	go run ./bench/footprint -nodeprobe ./nodeprobe -for 5m -load busy
//	go run ./bench/footprint -containers 250       # with and without them, in turns
//	go run ./bench/footprint -causes               # what wakes it, and what that costs
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

func main() {
	pressure.Main()
	program.Main("footprint", run)
}

const (
	observeName = "nodeprobe observe"
	ownName     = "nodeprobe own"
	// leaseDuration is the kubelet's default, and nodeprobe's.
	leaseDuration = 40 * time.Second
	// warmup is for starting to be over.
	warmup = 15 * time.Second
)

// budgets
const (
	rssObserve, rssOwn = 17, 22 // MiB
	cpuIdle            = 10     // ms per minute
	cpuBusy            = 0.5    // of node_exporter's
	wakeupsIdle        = 3      // per second
)

var peer = build.Target{
	Name:    "node_exporter",
	Dir:     "bench/peers/nodeexporter",
	Package: "github.com/prometheus/node_exporter",
	Module:  "github.com/prometheus/node_exporter",
}

func run(p *program.P) {
	length := p.Flags.Duration("for", 30*time.Minute, "how long to measure under each load")
	load := p.Flags.String("load", "idle,busy", "the loads, one after the other")
	window := p.Flags.Duration("window", time.Minute, "how long to measure with -containers and -causes")
	containers := p.Flags.Int("containers", 0, "compare with a machine of so many `containers` more")
	rounds := p.Flags.Int("rounds", 3, "how many windows with containers, and without")
	byCause := p.Flags.Bool("causes", false, "run one more of nodeprobe's tasks after the other, idle")
	binary := p.ParseNodeprobe()
	cp := p.ControlPlane(controlplane.Options{})
	if *byCause {
		causes(p, cp, binary, *window)
		return
	}
	peerBinary := build.Cached(p, peer)
	if *containers > 0 {
		besideContainers(p, start(p, cp, binary, peerBinary), *containers, *rounds, *window)
		return
	}
	for load := range strings.SplitSeq(*load, ",") {
		if load != "idle" && load != "busy" {
			p.Fatalf("unknown load %q", load)
		}
		// Each from the start: what grows does so with age.
		p.Scope(func() {
			subjects := start(p, cp, binary, peerBinary)
			p.Sleep(warmup)
			costs, memory := watch(p, load, *length, subjects)
			// An idle process that does not do its job would look good.
			lease := must.Get(cp.Client().CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(p.Context(), "own", metav1.GetOptions{}))(p)
			if renewed := lease.Spec.RenewTime; renewed == nil || time.Since(renewed.Time) > leaseDuration {
				p.Fatalf("%s renewed its Lease at %v", ownName, renewed)
			}
			p.Print(figures(load, costs, memory))
		})
	}
	megabytes := func(file string) float64 { return float64(must.Get(os.Stat(file))(p).Size()) / 1e6 }
	p.Print([]program.Figure{{
		Name: "binary_size", Value: megabytes(binary), Digits: 1, Unit: "MB", Budget: 36, Peer: peer.Name, Beside: megabytes(peerBinary),
	}})
}

// marks are when to look: after 1 and 5 minutes, and in the end.
func marks(length time.Duration) (all []time.Duration) {
	for _, mark := range []time.Duration{time.Minute, 5 * time.Minute, 30 * time.Minute} {
		if mark < length {
			all = append(all, mark)
		}
	}
	return append(all, length)
}

// watch shows what everything costs from one mark to the next, and what it holds there,
// and returns the last of that. What is shown stays, however the program ends.
func watch(p *program.P, load string, length time.Duration, subjects []footprint.Subject) (map[string]footprint.Cost, map[string]footprint.Memory) {
	var w *work
	if load == "busy" {
		p.Logf("busy: every %s one program is built, %d processes are started and %d MiB are read in a cgroup with room for %d",
			roundInterval, roundForks, 6*fileSize>>20, fileRoom>>20)
		w = startWork(p)
	}
	p.Logf("measuring for %s", length)
	var costs map[string]footprint.Cost
	memory := map[string]footprint.Memory{}
	before, passed := readMachine(p, w), time.Duration(0)
	for _, mark := range marks(length) {
		costs = footprint.Measure(p, mark-passed, subjects)
		now := readMachine(p, w)
		fmt.Fprintf(p.Out, "\n%s, %s to %s: %s\n", load, passed, mark, now.since(before))
		before, passed = now, mark
		rows := []string{"process\tRSS MiB\tmax\tanon\tfile\tlocked\tPSS\tcgroup\tworking set\tCPU ms/min\twake-ups/s\tscrapes\tmissed\tscrape KiB"}
		for _, s := range subjects {
			m, c := must.Get(footprint.ReadMemory(s))(p), costs[s.Name]
			memory[s.Name] = m
			cells := []string{s.Name}
			for _, bytes := range []int64{m.RSS, c.RSSMax, m.Anon, m.File, m.Locked, m.PSS, m.Charged, m.WorkingSet} {
				if bytes < 0 {
					cells = append(cells, "-")
				} else {
					cells = append(cells, fmt.Sprintf("%.1f", mib(bytes)))
				}
			}
			rows = append(rows, fmt.Sprintf("%s\t%.1f\t%.1f\t%d\t%d\t%.1f", strings.Join(cells, "\t"),
				program.Millis(c.CPU), c.Wakeups, c.Scrapes, c.Missed, float64(c.ScrapeBytes)/1024))
		}
		p.Table(rows...)
	}
	return costs, memory
}

// figures are what is compared with the budgets, at the last mark.
func figures(load string, costs map[string]footprint.Cost, memory map[string]footprint.Memory) []program.Figure {
	busy := load == "busy"
	other, others := costs[peer.Name], memory[peer.Name]
	figure := func(name string, value float64, unit string, budget, beside float64) program.Figure {
		if busy {
			name = "busy_" + name
		}
		return program.Figure{Name: name, Value: value, Digits: 1, Unit: unit, Budget: budget, Peer: peer.Name, Beside: beside}
	}
	all := []program.Figure{
		figure("rss_observe", mib(memory[observeName].RSS), "MiB", rssObserve, mib(others.RSS)),
		figure("rss_own", mib(memory[ownName].RSS), "MiB", rssOwn, mib(others.RSS)),
	}
	for _, name := range []string{observeName, ownName} {
		mode := strings.TrimPrefix(name, "nodeprobe ")
		cpu, beside := program.Millis(costs[name].CPU), program.Millis(other.CPU)
		budget, wakeups := float64(cpuIdle), float64(wakeupsIdle)
		if busy {
			budget, wakeups = math.Round(10*cpuBusy*beside)/10, 0
		}
		all = append(all, figure("cpu_"+mode, cpu, "ms/min", budget, beside),
			figure("wakeups_"+mode, costs[name].Wakeups, "/s", wakeups, other.Wakeups))
	}
	return all
}

// start starts what is to be measured and waits until all of it answers scrapes.
func start(p *program.P, cp *controlplane.ControlPlane, binary, peerBinary string) (subjects []footprint.Subject) {
	for _, name := range []string{observeName, ownName} {
		mode := strings.TrimPrefix(name, "nodeprobe ")
		dir, group := p.TempDir(), cgroup(p)
		a := agent.StartForTest(p, agent.Spec{
			Binary: coldCopy(p, binary, dir), Dir: dir, NodeName: mode, Kubeconfig: must.Get(cp.NodeKubeconfig(mode))(p), Cgroup: group,
			Config: agent.Config{"apiVersion": "nodeprobe.dev/v1alpha1", "kind": "NodeProbeConfiguration", "mode": mode},
		})
		subjects = append(subjects, footprint.Subject{Name: name, PID: a.PID(), MetricsURL: a.URL("/metrics"), Cgroup: group})
	}
	address := fmt.Sprintf("127.0.0.1:%d", must.Get(process.FreePorts(1))(p)[0])
	dir, group := p.TempDir(), cgroup(p)
	exporter := must.Get(process.Start(process.Spec{
		Path: coldCopy(p, peerBinary, dir), Args: []string{"--web.listen-address=" + address}, LogFile: filepath.Join(dir, "log"), Cgroup: group,
	}))(p)
	p.Cleanup(func() { exporter.Stop(0) })
	last := footprint.Subject{Name: peer.Name, PID: exporter.PID(), MetricsURL: "http://" + address + "/metrics", Cgroup: group}
	ctx, cancel := context.WithTimeout(p.Context(), 2*time.Minute)
	defer cancel()
	must.OK(p, exporter.WaitReady(ctx, func(ctx context.Context) error {
		_, err := footprint.Scrape(ctx, last.MetricsURL)
		return err
	}))
	return append(subjects, last)
}

// cgroup returns the directory of a new memory cgroup, or "" and says why not.
func cgroup(p *program.P) string {
	group, err := pressure.MemoryCgroup(0)
	if err != nil {
		p.Logf("what a cgroup is charged with is not measured: %v", err)
		return ""
	}
	p.Cleanup(func() { must.Note(p, group.Release()) })
	return group.Cgroup
}

// coldCopy copies a program to a directory. Nobody else shares the copy's pages or has
// them charged, and none is in the page cache yet.
func coldCopy(p *program.P, file, dir string) string {
	from := must.Get(os.Open(file))(p)
	defer from.Close()
	name := filepath.Join(dir, filepath.Base(file))
	to := must.Get(os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o755))(p)
	must.Get(io.Copy(to, from))(p)
	must.OK(p, cmp.Or(to.Sync(), unix.Fadvise(int(to.Fd()), 0, 0, unix.FADV_DONTNEED), to.Close()))
	return name
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// besideContainers compares windows with containers and without, in turns, so that what
// else goes on here is in both.
func besideContainers(p *program.P, subjects []footprint.Subject, containers, rounds int, window time.Duration) {
	// Waits first, so that the start and the end of containers is in no window.
	measure := func() map[string]footprint.Cost {
		p.Sleep(warmup)
		return footprint.Measure(p, window, subjects)
	}
	var without, with []map[string]footprint.Cost
	for round := range rounds {
		p.Logf("round %d of %d: %s without containers, %s with %d", round+1, rounds, window, window, containers)
		without = append(without, measure())
		load := must.Get(pressure.Containers(containers))(p)
		with = append(with, measure())
		must.OK(p, load.Release())
	}
	printRatios(p, subjects, containers, without, with)
}

// printRatios prints medians over the windows. The budget is nodeprobe's.
func printRatios(p *program.P, subjects []footprint.Subject, containers int, without, with []map[string]footprint.Cost) {
	for _, s := range subjects {
		median := func(windows []map[string]footprint.Cost, of func(footprint.Cost) float64) float64 {
			var values []float64
			for _, costs := range windows {
				values = append(values, of(costs[s.Name]))
			}
			slices.Sort(values)
			return values[len(values)/2]
		}
		cpu := func(c footprint.Cost) float64 { return program.Millis(c.CPU) }
		rss := func(c footprint.Cost) float64 { return mib(c.RSS) }
		cpu0, cpu1, rss0, rss1 := median(without, cpu), median(with, cpu), median(without, rss), median(with, rss)
		fmt.Fprintf(p.Out, "%s: CPU %.1f -> %.1f ms/min, RSS %.2f -> %.2f MiB\n", s.Name, cpu0, cpu1, rss0, rss1)
		if mode, ours := strings.CutPrefix(s.Name, "nodeprobe "); ours {
			p.Print([]program.Figure{
				{Name: fmt.Sprintf("cpu_%s_%d_containers", mode, containers), Value: cpu1 / cpu0, Digits: 3, Unit: "x", Budget: 1.05},
				{Name: fmt.Sprintf("rss_%s_%d_containers", mode, containers), Value: rss1 / rss0, Digits: 3, Unit: "x", Budget: 1.05},
			})
		}
	}
}

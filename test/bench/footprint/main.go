// Command footprint measures nodeprobe in observe mode, nodeprobe in own mode
// against a real control plane, and node_exporter, side by side, and prints one
// RESULT line for each figure that has a budget.
//
//	go run ./bench/footprint                       # builds all three first
//	go run ./bench/footprint -nodeprobe ./nodeprobe -window 5m
//	go run ./bench/footprint -containers 250       # with and without them, in turns
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

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
)

var peer = build.Target{
	Name:    "node_exporter",
	Dir:     "bench/peers/nodeexporter",
	Package: "github.com/prometheus/node_exporter",
	Module:  "github.com/prometheus/node_exporter",
}

func run(p *program.P) {
	window := p.Flags.Duration("window", time.Minute, "how long to measure")
	warmup := p.Flags.Duration("warmup", 10*time.Second, "how long to wait before")
	containers := p.Flags.Int("containers", 0, "compare with a machine of so many `containers` more")
	rounds := p.Flags.Int("rounds", 3, "how many windows with containers, and without")
	binary := p.ParseNodeprobe()
	peerBinary := build.Cached(p, peer)
	cp := p.ControlPlane(controlplane.Options{})
	subjects := start(p, cp, binary, peerBinary)
	// Waits first, so that the start and the end of containers is in no window.
	measure := func() map[string]footprint.Cost {
		p.Sleep(*warmup)
		return footprint.Measure(p, *window, subjects)
	}
	if *containers > 0 {
		// In turns, so that what else goes on here is in both.
		var without, with []map[string]footprint.Cost
		for round := range *rounds {
			p.Logf("round %d of %d: %s without containers, %s with %d", round+1, *rounds, *window, *window, *containers)
			without = append(without, measure())
			load := must.Get(pressure.Containers(*containers))(p)
			with = append(with, measure())
			must.OK(p, load.Release())
		}
		printRatios(p, subjects, *containers, without, with)
		return
	}
	p.Logf("measuring for %s after %s of warm-up", *window, *warmup)
	costs := measure()
	// An idle process that does not do its job would look good.
	lease := must.Get(cp.Client().CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(p.Context(), "own", metav1.GetOptions{}))(p)
	if renewed := lease.Spec.RenewTime; renewed == nil || time.Since(renewed.Time) > leaseDuration {
		p.Fatalf("%s renewed its Lease at %v", ownName, renewed)
	}
	rows := []string{"process\tRSS MiB\tmax\tanon\tfile\tCPU ms/min\twake-ups/s\tscrapes\tscrape KiB"}
	for _, s := range subjects {
		c := costs[s.Name]
		rows = append(rows, fmt.Sprintf("%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%d\t%.1f", s.Name, mib(c.RSS), mib(c.RSSMax),
			mib(c.RSSAnon), mib(c.RSSFile), program.Millis(c.CPU), c.Wakeups, c.Scrapes, float64(c.ScrapeBytes)/1024))
	}
	p.Table(rows...)
	megabytes := func(file string) float64 { return float64(must.Get(os.Stat(file))(p).Size()) / 1e6 }
	observe, own, other := costs[observeName], costs[ownName], costs[peer.Name]
	figure := func(name string, value float64, unit string, budget, beside float64) program.Figure {
		return program.Figure{Name: name, Value: value, Digits: 1, Unit: unit, Budget: budget, Peer: peer.Name, Beside: beside}
	}
	p.Print([]program.Figure{
		figure("rss_observe", mib(observe.RSS), "MiB", 17, mib(other.RSS)),
		figure("rss_own", mib(own.RSS), "MiB", 22, mib(other.RSS)),
		figure("cpu_own", program.Millis(own.CPU), "ms/min", 10, program.Millis(other.CPU)),
		figure("wakeups_own", own.Wakeups, "/s", 3, other.Wakeups),
		figure("binary_size", megabytes(binary), "MB", 36, megabytes(peerBinary)),
	})
}

// start starts what is to be measured and waits until all of it answers scrapes.
func start(p *program.P, cp *controlplane.ControlPlane, binary, peerBinary string) (subjects []footprint.Subject) {
	for _, name := range []string{observeName, ownName} {
		mode := strings.TrimPrefix(name, "nodeprobe ")
		a := agent.StartForTest(p, agent.Spec{
			Binary: binary, Dir: p.TempDir(), NodeName: mode, Kubeconfig: must.Get(cp.NodeKubeconfig(mode))(p),
			Config: agent.Config{"apiVersion": "nodeprobe.dev/v1alpha1", "kind": "NodeProbeConfiguration", "mode": mode},
		})
		subjects = append(subjects, footprint.Subject{Name: name, PID: a.PID(), MetricsURL: a.URL("/metrics")})
	}
	address := fmt.Sprintf("127.0.0.1:%d", must.Get(process.FreePorts(1))(p)[0])
	exporter := must.Get(process.Start(process.Spec{
		Path: peerBinary, Args: []string{"--web.listen-address=" + address}, LogFile: filepath.Join(p.TempDir(), "log"),
	}))(p)
	p.Cleanup(func() { exporter.Stop(0) })
	last := footprint.Subject{Name: peer.Name, PID: exporter.PID(), MetricsURL: "http://" + address + "/metrics"}
	ctx, cancel := context.WithTimeout(p.Context(), 2*time.Minute)
	defer cancel()
	must.OK(p, exporter.WaitReady(ctx, func(ctx context.Context) error {
		_, err := footprint.Scrape(ctx, last.MetricsURL)
		return err
	}))
	return append(subjects, last)
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

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

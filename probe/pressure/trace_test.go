package pressure

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/probe"
)

// trace is one signal of a machine over time, and a limit. Those in testdata/traces were
// recorded on real ones; testdata/traces/README.md says which, and how.
type trace struct {
	name            string
	signal          probe.Signal
	capacity, limit int64
	load            load
	length          float64 // in seconds
	begin           float64 // of a fill
}

// forecast is what was forecast at a time.
type forecast struct {
	at, left float64 // in seconds; left is negative if nothing was
}

// sampled is how a trace is looked at: as where the kernel watches the limit, or as where
// the pace must notice it.
var sampled = []struct {
	name string
	next func(estimates []Estimate, before time.Duration) time.Duration
}{
	{"every 10 s", func([]Estimate, time.Duration) time.Duration { return 10 * time.Second }},
	{"by the pace", func(e []Estimate, before time.Duration) time.Duration { return NextSample(e, before, Pace{}) }},
}

// forecasts returns what is forecast until the limit is reached or the trace ends.
func (tr *trace) forecasts(next func([]Estimate, time.Duration) time.Duration) (all []forecast) {
	f := NewForecaster([]Threshold{{Signal: tr.signal, Value: Value{Quantity: tr.limit}}})
	var now, interval time.Duration
	for ; now.Seconds() < tr.length; now += interval {
		s := probe.Snapshot{Time: start.Add(now)}
		s.Signals[tr.signal] = probe.Observation{Available: int64(tr.load(now.Seconds())), Capacity: tr.capacity, OK: true}
		estimates := f.Observe(&s)
		e := &estimates[0]
		switch {
		case e.Headroom <= 0:
			return all
		case e.OK:
			all = append(all, forecast{now.Seconds(), e.TimeToLimit.Seconds()})
		default:
			all = append(all, forecast{now.Seconds(), -1})
		}
		interval = next(estimates, interval)
	}
	return all
}

// readTraces reads files of this form: comments, for each signal its capacity and a limit,
// and then the available amounts at each time.
//
//	# What this is.
//	fill 30                                   a fill begins at 30 s; no such line if none does
//	memory.available 25190285312 104857600
//	nodefs.available 52521566208 5252156620
//	0 18012345344 21012345344
//	10 18012341248 21012345344
func readTraces(t *testing.T, pattern string) (traces []*trace) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no traces: %v", err)
	}
	for _, file := range files {
		read, err := readTrace(file)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		traces = append(traces, read...)
	}
	return traces
}

func readTrace(file string) (traces []*trace, err error) {
	text, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer text.Close()
	var (
		begin float64
		times []float64
		rows  [][]float64
	)
	for lines := bufio.NewScanner(text); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 0 || fields[0][0] == '#':
		case fields[0] == "fill" && len(fields) == 2:
			begin, err = strconv.ParseFloat(fields[1], 64)
		case fields[0][0] > '9':
			var tr trace
			if tr, err = parseHead(fields); err == nil {
				tr.name = strings.TrimSuffix(filepath.Base(file), ".txt") + ", " + tr.signal.String()
				traces = append(traces, &tr)
			}
		default:
			var row []float64
			for _, field := range fields {
				var n float64
				if n, err = strconv.ParseFloat(field, 64); err != nil {
					break
				}
				row = append(row, n)
			}
			if err == nil && len(row) != len(traces)+1 {
				err = errors.New("not a value for each signal")
			}
			if err == nil {
				times, rows = append(times, row[0]), append(rows, row[1:])
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", lines.Text(), err)
		}
	}
	for i, tr := range traces {
		tr.begin, tr.length = begin, times[len(times)-1]
		tr.load = func(seconds float64) float64 {
			k, found := slices.BinarySearch(times, seconds)
			if !found {
				k-- // what was read last
			}
			return rows[k][i]
		}
	}
	return traces, nil
}

func parseHead(fields []string) (tr trace, err error) {
	signal, ok := probe.ParseSignal(fields[0])
	if !ok || len(fields) != 3 {
		return tr, errors.New("not a signal, its capacity and a limit")
	}
	tr.signal = signal
	if tr.capacity, err = strconv.ParseInt(fields[1], 10, 64); err != nil {
		return tr, err
	}
	tr.limit, err = strconv.ParseInt(fields[2], 10, 64)
	return tr, err
}

// calmTraces are an hour of machines on which nothing happens, with this seed. Memory has
// noise of 4 MiB from sample to sample, wanders by 3 MiB in a second (180 MiB in an hour), a
// garbage collector takes 128 MiB in 90 s and gives it back, and every five minutes a job
// takes 60 MiB for 20 s. To a disk 20 KiB are logged a second and written every 30 s; 64 MiB
// of old logs are removed every 20 minutes. Tasks come and go, 2 a second, and live for a
// minute. There is much left, or little.
func calmTraces(seed uint64) (traces []*trace) {
	const length = 3600
	random := rand.New(rand.NewPCG(seed, 0))
	wander, tasks := make([]float64, length+1), make([]float64, length+1)
	tasks[0] = 400
	for i := 1; i <= length; i++ {
		wander[i] = wander[i-1] + 3*mib*random.NormFloat64()
		tasks[i] = tasks[i-1] + 2 - (tasks[i-1]-280)/60 + 2*random.NormFloat64()
	}
	phase := random.Float64() * 90
	memory := func(level float64) load {
		return func(s float64) float64 {
			level := level + wander[int(s)] + 4*mib*normal(s+float64(seed)*length)
			level -= 128 * mib * math.Mod(s+phase, 90) / 90
			if math.Mod(s+phase, 300) < 20 {
				level -= 60 * mib
			}
			return level
		}
	}
	disk := func(level float64) load {
		return func(s float64) float64 {
			written := 30 * math.Floor((s+phase)/30)
			return level - 20*1024*written + 64*mib*math.Floor((s+phase)/1200)
		}
	}
	pids := func(level float64) load {
		return func(s float64) float64 { return level - math.Round(tasks[int(s)]) }
	}
	add := func(name string, signal probe.Signal, capacity, limit float64, l load) {
		traces = append(traces, &trace{
			name: fmt.Sprintf("%s, seed %d", name, seed), signal: signal,
			capacity: int64(capacity), limit: int64(limit), load: l, length: length,
		})
	}
	add("memory, 95 % free", probe.MemoryAvailable, 8*gib, 100*mib, memory(7.6*gib))
	add("memory, 60 % free", probe.MemoryAvailable, 8*gib, 100*mib, memory(4.8*gib))
	add("memory, 20 % free", probe.MemoryAvailable, 8*gib, 100*mib, memory(1.6*gib))
	add("disk, half free", probe.NodeFsAvailable, 100*gib, 10*gib, disk(50*gib))
	add("disk, 12 % free", probe.NodeFsAvailable, 100*gib, 10*gib, disk(12*gib))
	add("PIDs, nearly all free", probe.PIDAvailable, 32768, 1638, pids(32768))
	add("PIDs, 10 % free", probe.PIDAvailable, 32768, 1638, pids(3700))
	return traces
}

var seeds = flag.Uint64("seeds", 20, "how many hours of each calm machine TestCalm makes")

// Nothing is forecast of a machine on which nothing happens.
func TestCalm(t *testing.T) {
	traces := readTraces(t, "testdata/traces/calm*.txt")
	for seed := range *seeds {
		traces = append(traces, calmTraces(seed)...)
	}
	for _, tr := range traces {
		for _, how := range sampled {
			all, forecasts := tr.forecasts(how.next), 0
			for _, f := range all {
				if f.left >= 0 {
					if forecasts == 0 {
						t.Errorf("%s, %s: after %.0f s: in %.0f s", tr.name, how.name, f.at, f.left)
					}
					forecasts++
				}
			}
			if len(all) < 60 || all[len(all)-1].at < tr.length-20 {
				t.Errorf("%s, %s: %d samples until %v", tr.name, how.name, len(all), all[len(all)-1])
			}
		}
	}
}

// fillTraces are fills after a calm of ten minutes, with the noise of a calm machine.
func fillTraces() []*trace {
	const begin = 600
	calm := calmTraces(1)
	noisy := func(i int, l load) load {
		first := calm[i].load(0)
		return func(s float64) float64 { return l(s) + calm[i].load(math.Mod(s, calm[i].length)) - first }
	}
	memory := func(name string, rate float64) *trace {
		return &trace{
			name: name, signal: probe.MemoryAvailable, capacity: 8 * gi, limit: 100 * mi, begin: begin,
			load: noisy(0, fill(5*gib, begin, rate)), length: 4 * 3600,
		}
	}
	disk := func(name string, l load) *trace {
		return &trace{
			name: name, signal: probe.NodeFsAvailable, capacity: 100 * gi, limit: 10 * gi, begin: begin,
			load: noisy(3, l), length: 4 * 3600,
		}
	}
	steps := func(s float64) float64 { return fill(40*gib, begin, 20*mib)(30 * math.Floor(s/30)) }
	// At first twice as fast as at the end, as a download that is throttled.
	slower := func(s float64) float64 {
		x := max(0, s-begin)
		return 40*gib - 30*gib*(x/900)*(1-x/2700)*1.5
	}
	pids := &trace{
		name: "PIDs, 20 a second", signal: probe.PIDAvailable, capacity: 32768, limit: 1638, begin: begin,
		load: noisy(5, fill(32000, begin, 20)), length: 4 * 3600,
	}
	return []*trace{
		memory("memory, 100 MiB/s", 100*mib), memory("memory, 10 MiB/s", 10*mib), memory("memory, 2 MiB/s", 2*mib), memory("memory, 1/2 MiB/s", mib/2),
		disk("disk, 200 MiB/s", fill(40*gib, begin, 200*mib)), disk("disk, 20 MiB/s in steps of 30 s", steps),
		disk("disk, slower and slower", slower), pids,
	}
}

// TestFills writes a table: for each fill, how long before the limit it was first forecast,
// and for good; and by how much the forecasts were wrong when half, a quarter and a tenth
// of the fill was left: +10 % is an hour that was forecast as 66 minutes.
func TestFills(t *testing.T) {
	const file = "testdata/traces/errors.txt"
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "fill\tsamples\ttakes\tforecast from\tlate by, at 1/2\t1/4\t1/10")
	for _, tr := range append(readTraces(t, "testdata/traces/fill*.txt"), fillTraces()...) {
		for _, how := range sampled {
			all := tr.forecasts(how.next)
			// The samples that show it may be late.
			end := tr.begin
			for ; end < tr.length && tr.load(end) > float64(tr.limit); end += 0.1 {
			}
			if end >= tr.length {
				t.Fatalf("%s: never reached", tr.name)
			}
			first := end
			for _, f := range slices.Backward(all) {
				if f.left < 0 {
					break
				}
				first = f.at
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s before", tr.name, how.name, seconds(end-tr.begin), seconds(end-first))
			for _, share := range []float64{0.5, 0.25, 0.1} {
				at := end - share*(end-tr.begin)
				i, _ := slices.BinarySearchFunc(all, at, func(f forecast, at float64) int { return int(math.Copysign(1, f.at-at)) })
				i = max(0, i-1) // the latest sample by then
				if all[i].left < 0 {
					fmt.Fprint(w, "\t-")
					continue
				}
				fmt.Fprintf(w, "\t%+.0f %%", 100*(all[i].left/(end-all[i].at)-1))
			}
			fmt.Fprintln(w)
		}
	}
	w.Flush()
	got := strings.ReplaceAll(table.String(), " \n", "\n")
	t.Logf("\n%s", got)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got); -update writes it:\n%s", file, diff)
	}
}

func seconds(s float64) string { return (time.Duration(s) * time.Second).String() }

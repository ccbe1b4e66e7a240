// Package flap has values dance around their limits on a real kernel, and counts
// what nodeprobe makes of it: events, samples, patches. Its tests are in
// "make test-flap".
package flap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// scene is nodeprobe in mode own, an API server that keeps a record, and the
// dancers.
type scene struct {
	*stage.Node
	agent      *agent.Agent
	dancers    []*dancer
	transition time.Duration
	history    *nodewatch.History
	truth      *recorder
}

func newScene(t *testing.T, config agent.Config) *scene {
	t.Helper()
	// It builds the product before there are limits: a compiler needs memory that will be back.
	s := &scene{Node: stage.New(t, controlplane.StartExclusive(t, controlplane.Options{AuditLog: true}), config), dancers: newDancers(t)}
	s.transition = must.Get(time.ParseDuration(config["evictionPressureTransitionPeriod"].(string)))(t)
	limits := map[string]string{}
	for _, d := range s.dancers {
		limits[d.signal] = strconv.FormatInt(d.limit, 10)
	}
	s.history = s.Follow()
	s.Spec.Config = s.Spec.Config.With(agent.Config{
		"bpf": "auto", "sampleInterval": "10s", "evictionHard": agent.Hard(limits), "logLevel": "debug",
		"enforceNodeAllocatable": []string{}, // or else there is a limit that the kernel does not watch
		"rootDirectory":          s.dancer("nodefs.available").dir,
		"imageDirectories":       []string{s.dancer("imagefs.inodesFree").dir},
	})
	s.agent = s.Start()
	for _, d := range s.dancers {
		capacity := s.metrics()[fmt.Sprintf("nodeprobe_signal_capacity_%s{signal=%q}", d.unit, d.signal)]
		d.band = min(d.limit/10, int64(capacity)/100)
	}
	for _, l := range s.log() {
		if l.Msg == "limits in the kernel" && l.Polled != "" {
			need.Skip(t, "the kernel cannot watch "+l.Polled)
		}
	}
	s.truth = record(s.dancers)
	t.Cleanup(s.truth.stop)
	return s
}

func (s *scene) dancer(signal string) *dancer {
	for _, d := range s.dancers {
		if d.signal == signal {
			return d
		}
	}
	panic(signal)
}

func (s *scene) stop() {
	s.truth.stop()
	s.agent.Stop()
}

func (s *scene) metrics() map[string]float64 {
	s.T.Helper()
	return must.Get(s.agent.Metrics(s.T.Context()))(s.T)
}

// line is a line of the agent's log: what there is of all lines that matter.
type line struct {
	Time                     time.Time
	Msg, Kind                string
	Watch                    int
	Watched, Polled          string
	Condition, Status, Level string
}

func (s *scene) log() []line {
	s.T.Helper()
	var lines []line
	for _, r := range stage.Logged(s.T, s.agent, "") {
		var l line
		if json.Unmarshal([]byte(r.Line), &l) == nil {
			lines = append(lines, l)
		}
	}
	return lines
}

// events counts the crossings that the kernel reported, by signal.
func (s *scene) events(begin, end time.Time) map[string]int {
	s.T.Helper()
	counts := map[string]int{}
	var watched []string
	for _, l := range s.log() {
		switch {
		case l.Msg == "limits in the kernel":
			watched = strings.Fields(l.Watched)
		case l.Msg == "kernel event" && l.Kind == "crossing" && l.Time.After(begin) && l.Time.Before(end):
			signal, _, _ := strings.Cut(watched[l.Watch], "<")
			counts[signal]++
		}
	}
	return counts
}

func (s *scene) ended(begin, end time.Time) (n int) {
	s.T.Helper()
	for _, l := range s.log() {
		if l.Msg == "condition changed" && l.Status == string(corev1.ConditionFalse) && l.Time.After(begin) && l.Time.Before(end) {
			n++
		}
	}
	return n
}

// patches returns when the API server got patches of the Node's status.
func (s *scene) patches(begin, end time.Time) (times []time.Time) {
	s.T.Helper()
	for _, e := range stage.Writes(s.T, s.CP, "nodeprobe", begin).Of("patch nodes/status") {
		if e.RequestReceivedTimestamp.Before(end) {
			times = append(times, e.RequestReceivedTimestamp)
		}
	}
	return times
}

// denials returns, by dancer, for how long at most its value was under its limit
// and nodeprobe said False.
func (s *scene) denials() map[string]time.Duration {
	s.T.Helper()
	said := map[string][]verdict{}
	for _, l := range s.log() {
		if l.Msg == "condition changed" {
			said[l.Condition] = append(said[l.Condition], verdict{l.Time, l.Status == string(corev1.ConditionTrue)})
		}
	}
	longest := map[string]time.Duration{}
	for i, d := range s.dancers {
		// Two readings of one value at almost the same time differ by some.
		longest[d.signal] = longestDenial(s.truth.readings[i], d.limit-d.reach/16, said[string(d.condition)])
	}
	return longest
}

// passages counts what the value of a dancer really did.
func (s *scene) passages(i int, begin, end time.Time) int {
	var truth []reading
	for _, r := range s.truth.copy(i) {
		if r.at.After(begin) && r.at.Before(end) {
			truth = append(truth, r)
		}
	}
	// It need not have come all the way for the kernel, which looks at other
	// counters, to take it so.
	d := s.dancers[i]
	return passages(truth, d.limit, d.limit+d.band-d.reach/16)
}

// lastUnder returns when the value of a dancer was last under its limit.
func (s *scene) lastUnder(i int) time.Time {
	for _, r := range slices.Backward(s.truth.copy(i)) {
		if r.value < s.dancers[i].limit {
			return r.at
		}
	}
	return time.Time{}
}

// recorder reads all values all the time.
type recorder struct {
	mu       sync.Mutex
	readings [][]reading // of each dancer
	stop     func()
}

// readEvery is short enough to see what lasts, and long enough to leave the
// machine to the dance.
const readEvery = 5 * time.Millisecond

func record(dancers []*dancer) *recorder {
	ctx, cancel := context.WithCancel(context.Background())
	r := &recorder{readings: make([][]reading, len(dancers))}
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			for i, d := range dancers {
				if value, err := d.available(); err == nil {
					r.mu.Lock()
					r.readings[i] = append(r.readings[i], reading{time.Now(), value})
					r.mu.Unlock()
				}
			}
			time.Sleep(readEvery)
		}
	})
	r.stop = sync.OnceFunc(func() {
		cancel()
		done.Wait()
	})
	return r
}

func (r *recorder) copy(i int) []reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]reading(nil), r.readings[i]...)
}

// dancer is a value of this machine that can be moved at will, and its limit.
type dancer struct {
	signal    string
	unit      string
	dir       string // of the filesystem, if it is of one
	condition corev1.NodeConditionType
	limit     int64
	// band is how far above the limit the kernel reports that the value is back.
	band int64
	// reach is how far beyond either edge a large dance goes; others move the
	// value by less than that meanwhile.
	reach     int64
	available func() (int64, error)
	move      func(available int64) error
}

// Where a dance turns around.
func (d *dancer) under() int64  { return d.limit - d.reach }
func (d *dancer) over() int64   { return d.limit + d.band + d.reach }
func (d *dancer) within() int64 { return d.limit + d.band/2 }

// newDancers makes a dancer for each limit that the kernel watches. The limits
// of memory and PIDs lie so far below what is available at present that both
// sides can be reached although others use some of it.
func newDancers(t *testing.T) []*dancer {
	t.Helper()
	present := must.Get(pressure.AvailableMemory())(t)
	if present < 6<<30 {
		t.Skipf("only %d MiB of memory are available", present>>20)
	}
	memory := &dancer{
		signal: "memory.available", unit: "bytes", condition: corev1.NodeMemoryPressure, limit: present - 3<<29, reach: 256 << 20,
		available: pressure.AvailableMemory, move: mover(t, must.Get(pressure.MemoryRamp(3<<30))(t), 8<<20),
	}
	pids := &dancer{
		signal: "pid.available", unit: "tasks", condition: corev1.NodePIDPressure, limit: must.Get(pressure.AvailableTasks())(t) - 1500, reach: 200,
		available: pressure.AvailableTasks, move: mover(t, must.Get(pressure.TaskRamp())(t), 1),
	}
	// Two filesystems, so that their dances do not wait for each other.
	nodefs, imagefs := pressure.Disk(t, 256), pressure.Disk(t, 256)
	return []*dancer{memory, {
		signal: "nodefs.available", unit: "bytes", dir: nodefs.Dir, condition: corev1.NodeDiskPressure, limit: 64 << 20, reach: 8 << 20,
		available: nodefs.Available, move: nodefs.Fill,
	}, {
		signal: "imagefs.inodesFree", unit: "inodes", dir: imagefs.Dir, condition: corev1.NodeDiskPressure, limit: 20_000, reach: 300,
		available: imagefs.InodesFree, move: imagefs.TakeInodes,
	}, pids}
}

// mover returns what moves the value of a ramp, in steps, until the test ends.
func mover(t *testing.T, r pressure.Ramp, step int64) func(available int64) error {
	t.Cleanup(func() { must.Note(t, r.Close()) })
	return func(available int64) error {
		now, err := r.Available()
		if err != nil {
			return err
		}
		if over := (now - available) / step * step; over > 0 {
			return r.Take(over)
		} else if err := r.Give(-over); err != nil {
			return err
		}
		// Threads take a moment to end, and are not to be counted by the next move.
		for deadline := time.Now().Add(time.Second); err == nil && now < available-step && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			now, err = r.Available()
		}
		return err
	}
}

func (d *dancer) dance(ctx context.Context, low, high int64) (swings int, err error) {
	for ; ctx.Err() == nil; swings++ {
		if err := errors.Join(d.move(low), d.move(high)); err != nil {
			return swings, fmt.Errorf("%s: %w", d.signal, err)
		}
	}
	return swings, nil
}

// all calls do for each dancer at the same time.
func all(dancers []*dancer, do func(int, *dancer) error) error {
	errs := make([]error, len(dancers))
	var group sync.WaitGroup
	for i, d := range dancers {
		group.Go(func() { errs[i] = do(i, d) })
	}
	group.Wait()
	return errors.Join(errs...)
}

package flap

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

var dance = flag.Bool("dance", false, "have this machine's memory, PIDs and two small filesystems dance around limits for minutes")

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(build.Main(m))
}

const (
	// How long things dance.
	largeFor, smallFor = time.Minute, 20 * time.Second
	// overflowFor is long enough to fill the ring buffer, of some 1300 events.
	overflowFor = 12 * time.Second
	// noticed is how long a value may be under its limit before nodeprobe says
	// so; posted is how long it may then take the API server to hear of it:
	// until there is another token.
	noticed, posted = 2 * time.Second, refill + time.Second
)

func needDance(t *testing.T) {
	t.Helper()
	if !*dance {
		t.Skip("takes minutes and disturbs the machine; make test-flap runs it")
	}
	need.Root(t)
}

// TestLarge has each value pass both edges as fast as it can be made to, with
// nothing held: whatever the kernel reports flips a condition.
func TestLarge(t *testing.T) {
	needDance(t)
	s := newScene(t, agent.Config{"evictionPressureTransitionPeriod": "0s"})
	s.settle((*dancer).over)

	swings := make([]int, len(s.dancers))
	begin, before := time.Now(), s.metrics()
	ctx, cancel := context.WithTimeout(t.Context(), largeFor)
	defer cancel()
	must.OK(s.T, all(s.dancers, func(i int, d *dancer) (err error) {
		swings[i], err = d.dance(ctx, d.under(), d.over())
		return err
	}))
	end := time.Now()
	wakeups := s.wakeups("large", before)
	patches := s.patches(begin, end)

	// The final state is told, whichever it is.
	s.settle((*dancer).under)
	s.settle((*dancer).over)
	s.overflow()
	s.stop()

	most := mostPatches(end.Sub(begin))
	fmt.Printf("RESULT flap_patches=%d patches budget=%d\n", len(patches), most)
	if len(patches) > most || len(patches) < burst {
		t.Errorf("%d patches in %s, want up to %d, and not none", len(patches), end.Sub(begin), most)
	}
	must.Note(t, checkPace(s.patches(begin, time.Now())))
	events, total := s.events(begin, end), 0
	for i, d := range s.dancers {
		t.Logf("%s: %d swings in %s, %d events", d.signal, swings[i], end.Sub(begin).Round(time.Second), events[d.signal])
		// Others move memory too, if less often.
		most := max(2*swings[i], s.passages(i, begin, end))
		fmt.Printf("RESULT flap_events{%s}=%d events budget=%d\n", d.signal, events[d.signal], most)
		if n := events[d.signal]; n > most || n == 0 {
			t.Errorf("%s: %d events for %d swings", d.signal, n, swings[i])
		}
		total += events[d.signal]
	}
	s.checkWakeups("large", wakeups, total, largeFor)
	s.checkDenial("large")
}

// overflow has the kernel report more than there is room for, while nodeprobe is
// stopped. The last of it, which is lost, is the one that counts.
func (s *scene) overflow() {
	s.T.Helper()
	const lost = "nodeprobe_bpf_lost_events_total"
	before := s.metrics()[lost]
	must.OK(s.T, syscall.Kill(s.agent.PID(), syscall.SIGSTOP))
	one := s.dancer("nodefs.available")
	ctx, cancel := context.WithTimeout(s.T.Context(), overflowFor)
	defer cancel()
	_, err := one.dance(ctx, one.under(), one.over())
	must.OK(s.T, errors.Join(err, one.move(one.under())))
	must.OK(s.T, syscall.Kill(s.agent.PID(), syscall.SIGCONT))
	s.settle(func(d *dancer) int64 {
		if d == one {
			return d.under()
		}
		return d.over()
	})
	n := s.metrics()[lost] - before
	fmt.Printf("RESULT flap_lost=%.0f events\n", n)
	if n == 0 {
		s.T.Error("no event was lost")
	}
}

// TestSmall has each value dance across its limit, but not so far up that the
// kernel takes it for back.
func TestSmall(t *testing.T) {
	needDance(t)
	const held = 12 * time.Second // longer than until the next sample
	s := newScene(t, agent.Config{"evictionPressureTransitionPeriod": held.String()})
	s.settle((*dancer).over)

	begin, before := time.Now(), s.metrics()
	ctx, cancel := context.WithTimeout(t.Context(), smallFor)
	defer cancel()
	must.OK(s.T, all(s.dancers, func(_ int, d *dancer) error {
		_, err := d.dance(ctx, d.limit-d.reach/2, d.within())
		return err
	}))
	end := time.Now()
	wakeups := s.wakeups("small", before)
	events, total, passed := s.events(begin, end), 0, 0
	for i, d := range s.dancers {
		n := s.passages(i, begin, end)
		t.Logf("%s: %d passages, %d events", d.signal, n, events[d.signal])
		total += events[d.signal]
		passed += max(1, n)
	}
	// Once a condition is over, the kernel is to tell of the next dip below the
	// limit, although the value was not back by as much as it waits for: it takes
	// two events to bring it round.
	over := s.ended(begin, end)
	t.Logf("%d times a condition was over", over)
	passed += 2 * over
	fmt.Printf("RESULT flap_events{small}=%d events budget=%d\n", total, passed)
	if total > passed {
		t.Errorf("%d events %v, want at most %d", total, events, passed)
	}
	s.checkWakeups("small", wakeups, total, smallFor)
	patches := s.patches(begin, end)
	most := mostPatches(end.Sub(begin))
	fmt.Printf("RESULT flap_patches{small}=%d patches budget=%d\n", len(patches), most)
	if len(patches) > most {
		t.Errorf("%d patches in %s, want up to %d", len(patches), end.Sub(begin), most)
	}

	// One of them comes to rest above its limit, but not so far above that the
	// kernel would tell, and goes under once more. Only one: an event about any
	// has all of them looked at.
	one := s.dancer("nodefs.available")
	for _, to := range []int64{one.within(), one.under(), one.over()} {
		s.settle(func(d *dancer) int64 {
			if d == one {
				return to
			}
			return d.over()
		})
	}
	s.stop()
	must.Note(t, checkPace(s.patches(begin, time.Now())))
	s.checkDenial("small")
}

// wakeups returns how many samples were taken since the metrics were read, by
// cause, and prints what all that cost.
func (s *scene) wakeups(what string, before map[string]float64) map[string]int {
	s.T.Helper()
	now := s.metrics()
	delta := func(series string) float64 { return now[series] - before[series] }
	wakeups := map[string]int{}
	for _, cause := range []string{"tick", "near", "event", "stall", "mounts", "cgroup"} {
		wakeups[cause] = int(delta(fmt.Sprintf("nodeprobe_sampler_wakeups_total{cause=%q}", cause)))
	}
	s.T.Logf("%s: %.0f posts had to wait, %.0f events lost", what,
		delta("nodeprobe_status_held_patches_total"), delta("nodeprobe_bpf_lost_events_total"))
	fmt.Printf("RESULT flap_cpu{%s}=%.0f ms\n", what, 1000*delta("process_cpu_seconds_total"))
	return wakeups
}

// checkWakeups wants a sample for each event, and else no more than one a second,
// apart from those that have nothing to do with limits.
func (s *scene) checkWakeups(what string, wakeups map[string]int, events int, d time.Duration) {
	s.T.Helper()
	n, most := wakeups["event"]+wakeups["near"]+wakeups["tick"], events+int(d/time.Second)
	s.T.Logf("%s: samples by cause: %v", what, wakeups)
	fmt.Printf("RESULT flap_wakeups{%s}=%d samples budget=%d\n", what, n, most)
	if n > most {
		s.T.Errorf("%d samples because of %d events in %s, want at most %d", n, events, d, most)
	}
}

// settle keeps all values where they are to stay for a while, and waits until the
// Node agrees.
func (s *scene) settle(to func(*dancer) int64) {
	s.T.Helper()
	want := stage.Conditions{}
	for _, d := range s.dancers {
		switch {
		case to(d) < d.limit:
			want[d.condition] = corev1.ConditionTrue
		case want[d.condition] == "":
			want[d.condition] = corev1.ConditionFalse
		}
	}
	wait := noticed + s.transition + posted + 2*time.Second // for the API server's own time
	start := time.Now()
	for {
		// Again and again, as others move the values too.
		must.OK(s.T, all(s.dancers, func(_ int, d *dancer) error { return d.move(to(d)) }))
		if want.In(s.history.Last()) {
			break
		}
		rest := start
		for i, d := range s.dancers {
			if last := s.lastUnder(i); to(d) >= d.limit && last.After(rest) {
				rest = last // somebody else did that
			}
		}
		if time.Since(rest) > wait {
			s.T.Errorf("%s after it came to rest, conditions are not %s: %s", time.Since(rest), want, stage.Describe(s.history.Last()))
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.T.Logf("conditions are %s after %s", want, time.Since(start).Round(time.Millisecond))
}

// checkDenial holds what nodeprobe said against what was.
func (s *scene) checkDenial(what string) {
	s.T.Helper()
	var longest time.Duration
	for condition, denied := range s.denials() {
		s.T.Logf("%s: %s was denied for %s at most", what, condition, denied)
		longest = max(longest, denied)
	}
	fmt.Printf("RESULT flap_denied{%s}=%.3f s budget=%.0f\n", what, longest.Seconds(), noticed.Seconds())
	if longest > noticed {
		s.T.Errorf("a value was under its limit for %s without a condition", longest)
	}
}

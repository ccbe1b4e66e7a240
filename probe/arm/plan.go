package arm

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

const (
	// rearmInterval is how often the watches are set again although nothing is known to
	// have changed: the space that a filesystem reserves for root may have.
	rearmInterval = time.Minute
	// tightenInterval bounds how often a figure that hovers at its limit wakes the sampler.
	tightenInterval = 100 * time.Millisecond
	// minAgain is the time from a sample that did not show the pressure that the kernel
	// reported to the next. It doubles up to maxAgain, as the two may count differently
	// by some MiB: a figure that stays between them may go under the limit for both, and
	// the kernel would have nothing to report.
	minAgain, maxAgain = 10 * time.Millisecond, 500 * time.Millisecond
)

// plan decides which watches the kernel should have. It is pure: what it is decided from
// comes in with the call, and the caller sets the watches.
//
//	due, again := step(input)
//	if due: set the watches that limits want, each in its slot; armed(err); verify(levels)
type plan struct {
	limits []limit // one per estimate; nil before the first step
	// since is when some limit began to be ahead, zero if none is. While tight, the
	// kernel reports the end of its pressure as soon as the figure is back at the limit,
	// rather than well above it. tightened is when that began last.
	since, tightened time.Time
	tight            bool
	at               time.Time              // when the watches were set last
	paths            [numFilesystems]string // of the filesystems then
}

// input is what a step is decided from.
type input struct {
	snapshot  *probe.Snapshot
	estimates []pressure.Estimate
	settled   []bool      // by estimate: what its limit decides is True
	levels    *bpf.Levels // in the kernel, by slot
	invalid   bool        // what is in force may be about another filesystem
}

// step decides what each limit wants, and reports whether the watches have to be set. The
// next sample is due after again, if that is not 0.
func (p *plan) step(in input) (due bool, again time.Duration) {
	due = in.invalid
	if !p.covers(in.estimates) {
		p.reset(in.estimates)
		due = true
	}
	again = p.compare(&in)
	due = due || p.doubtful() || in.snapshot.Time.Sub(p.at) >= rearmInterval || p.paths != paths(in.snapshot)
	watches := 0
	for i := range p.limits {
		l := &p.limits[i]
		l.want, l.behind = l.wanted(in.snapshot), nil
		if l.want != (bpf.Watch{}) {
			watches++
			if p.tight && l.ahead {
				l.want.Above = l.want.Below
			}
		}
	}
	if watches > bpf.MaxWatches-numFilesystems { // which may need one each without a limit
		p.nearest(in.estimates)
	}
	for i := range p.limits {
		due = due || p.limits[i].want != p.limits[i].asked
	}
	return due, again
}

// nearest leaves, of each signal, the watches of two limits: the first that it would fall
// below, and the first that it would rise to. It cannot get to those behind them without
// an event for one of these, and the sample that this brings has the next ones watched:
// if the kernel finds that they are crossed already, it reports that at once. So however
// many rules there are, none is polled for want of a watch.
func (p *plan) nearest(estimates []pressure.Estimate) {
	var first [probe.NumSignals][2]int // and one more; 0 is none
	for i := range p.limits {
		if p.limits[i].want == (bpf.Watch{}) {
			continue
		}
		side, distance := sideOf(&estimates[i])
		best := &first[estimates[i].Signal][side]
		if *best > 0 {
			if _, nearest := sideOf(&estimates[*best-1]); nearest <= distance {
				continue
			}
		}
		*best = i + 1
	}
	for i := range p.limits {
		l := &p.limits[i]
		side, _ := sideOf(&estimates[i])
		if best := first[estimates[i].Signal][side] - 1; l.want != (bpf.Watch{}) && best != i {
			l.want, l.behind = bpf.Watch{}, &p.limits[best]
		}
	}
}

// sideOf returns on which side of its limit a signal is, and how far from it.
func sideOf(e *pressure.Estimate) (side int, distance int64) {
	if e.Headroom < 0 {
		return 1, -(e.Headroom + 1)
	}
	return 0, e.Headroom
}

// covers reports whether the limits are those of the estimates.
func (p *plan) covers(estimates []pressure.Estimate) bool {
	return p.limits != nil && slices.EqualFunc(p.limits, estimates, func(l limit, e pressure.Estimate) bool {
		return l.threshold == e.Threshold
	})
}

// reset starts afresh with other limits. The kernel's watches stay in force until others
// are set.
func (p *plan) reset(estimates []pressure.Estimate) {
	p.limits = make([]limit, len(estimates))
	for i := range estimates {
		p.limits[i] = limit{threshold: estimates[i].Threshold, slot: -1}
	}
}

// compare finds the limits for which the kernel reports pressure and the sample shows
// none. Either the figure was below its limit only for a moment, as an ext4 filesystem's
// is while it writes back, or it is not yet back where pressure ends for the kernel. If it
// went under again, the kernel would not report that, as for the kernel it never was back.
// That matters once a condition that the limit decides is over: until then a sample is due
// at the end of its transition period, or hold.
//
// It also finds the limits that are so near that only a sample tells, where the kernel does
// not sum up what the CPUs hold back (before Linux 5.19): the event still comes, only not
// at that very moment.
func (p *plan) compare(in *input) (again time.Duration) {
	now, ahead := in.snapshot.Time, false
	for i := range p.limits {
		l, e := &p.limits[i], &in.estimates[i]
		l.ahead, l.near = false, false
		if l.slot < 0 || l.hint || e.Headroom < 0 || in.settled[i] {
			continue
		}
		level := &in.levels.Watches[l.slot]
		l.ahead = level.Pressure.On()
		l.near = l.asked.Figure.OfFilesystem() && e.Headroom < heldBack(in.snapshot, l.asked.Figure, level)
		ahead = ahead || l.ahead
	}
	if !ahead {
		p.since, p.tight = time.Time{}, false
		return 0
	}
	if p.since.IsZero() {
		p.since = now
	}
	if !p.tight && now.Sub(p.tightened) >= tightenInterval {
		p.tight, p.tightened = true, now
	}
	// As long again as it has lasted so far.
	return min(max(now.Sub(p.since), minAgain), maxAgain)
}

// doubtful reports whether a figure of the kernel's was far off, and must be looked at
// again.
func (p *plan) doubtful() bool {
	for i := range p.limits {
		if p.limits[i].drift.doubtful() {
			return true
		}
	}
	return false
}

// armed takes note that the watches were set by a snapshot, and of the error of that.
func (p *plan) armed(s *probe.Snapshot, err error) {
	p.at, p.paths = s.Time, paths(s)
	var refused bpf.WatchErrors
	failed := err != nil && !errors.As(err, &refused)
	for i := range p.limits {
		l := &p.limits[i]
		if failed { // nothing was set
			l.slot, l.asked = -1, bpf.Watch{}
		} else {
			l.asked = l.want
		}
		l.watched = l.slot >= 0 && !slices.ContainsFunc(refused, func(r bpf.WatchError) bool { return r.Watch == l.slot })
	}
}

// verify compares the kernel's figures with the sampled ones. A limit whose figures
// disagree is polled as if the kernel did not watch it.
func (p *plan) verify(s *probe.Snapshot, levels *bpf.Levels) error {
	var errs []error
	for i := range p.limits {
		l := &p.limits[i]
		if !l.watched {
			l.drift, l.hint, l.shift = drift{}, false, 0
			continue
		}
		signal, level := l.threshold.Signal, &levels.Watches[l.slot]
		kernel, sampled := level.Value, s.Signals[signal].Available
		margin := slack(l.want, heldBack(s, l.want.Figure, level))
		if l.hint = level.IsHint(); l.hint {
			l.drift = drift{}
			l.follow(kernel, sampled, margin)
			continue
		}
		if l.want.Figure == bpf.FreeBytes {
			kernel = max(0, kernel-reserved(s, signal))
		}
		l.drift.observe(kernel, sampled, margin)
		if l.drift.sure {
			l.watched = false
			errs = append(errs, fmt.Errorf("%s: the kernel's figure is off by %d %s", signal, l.drift.offset, signal.Unit()))
		}
	}
	return errors.Join(errs...)
}

// paths returns where the filesystems of a snapshot are.
func paths(s *probe.Snapshot) [numFilesystems]string {
	return [...]string{nodeFs: s.NodeFs.Path, imageFs: s.ImageFs.Path}
}

package status

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// The cases are those of the kubelet's TestIsUpdateStatusPeriodExpired.
func TestReporterDue(t *testing.T) {
	for _, test := range []struct {
		name  string
		ago   time.Duration // of the last post; 0 if there was none
		delay time.Duration
		want  bool
	}{
		{"never", 0, 0, true},
		{"never, with a delay", 0, 30 * time.Second, true},
		{"too early", 4 * time.Minute, 0, false},
		{"delayed", 5 * time.Minute, time.Minute, false},
		{"advanced", 4 * time.Minute, -2 * time.Minute, true},
		{"the boundary is inclusive", 5 * time.Minute, 0, true},
		{"just before", 5*time.Minute - 1, 0, false},
	} {
		r := reporter{period: 5 * time.Minute, delay: test.delay}
		if test.ago > 0 {
			r.last = apitest.Epoch.Add(-test.ago)
		}
		if got := r.due(apitest.Epoch); got != test.want {
			t.Errorf("%s: %t, want %t", test.name, got, test.want)
		}
	}
}

func TestReporterDelay(t *testing.T) {
	const period = 5 * time.Minute
	r := reporter{period: period}
	now := apitest.Epoch
	for _, step := range []struct {
		name    string
		changed bool
		random  float64
		want    time.Duration // until the next post that nothing asked for
	}{
		{"first", false, 0, period / 2},
		{"V16: unchanged", false, 0.9, period},
		{"V15: changed, early", true, 0, period / 2},
		{"changed, late", true, 0.75, period + period/4},
		{"unchanged", false, 0.9, period},
	} {
		r.posted(now, step.changed, step.random)
		apitest.Diff(t, step.name, step.want, r.left(now))
		now = now.Add(r.left(now))
		if !r.due(now) || r.due(now.Add(-1)) {
			t.Errorf("%s: not due exactly when nothing is left", step.name)
		}
	}
	for range 100 { // the kubelet's TestCalculateDelay
		r.posted(now, true, rand.Float64())
		if r.delay.Abs() > period/2 {
			t.Fatalf("delay %v is more than half of %v", r.delay, period)
		}
	}
}

func TestPacer(t *testing.T) {
	const fold, refill = 500 * time.Millisecond, 10 * time.Second
	p := newPacer()
	now := apitest.Epoch
	for _, step := range []struct {
		name  string
		after time.Duration // since the last post
		want  time.Duration
	}{
		{"the first at once", 0, 0},
		{"within the fold", 100 * time.Millisecond, 400 * time.Millisecond},
		{"at its end", fold, 0},
		{"the third", fold, 0},
		{"the burst is over: 1 s of 10 s have passed", time.Millisecond, refill - 2*fold - time.Millisecond},
		{"a token later", refill - 2*fold, 0},
		{"each has to wait now", fold, refill - fold},
		{"and gets its turn", refill, 0},
		{"after a pause of two tokens", 2 * refill, 0},
		{"the second of them", fold, 0},
		{"no third", fold, refill - 2*fold},
	} {
		at := now.Add(step.after)
		wait := p.wait(at, true)
		apitest.Diff(t, step.name, step.want, wait)
		if wait == 0 {
			p.post(at)
			now = at
		}
	}
	p.post(now.Add(time.Hour))
	apitest.Diff(t, "no more than the burst is saved up", 2, p.tokens)
}

// Whatever comes and goes leaves a token for what begins.
func TestPacerKeepsLastToken(t *testing.T) {
	p := newPacer()
	now := apitest.Epoch
	for range 2 {
		apitest.Diff(t, "a change that makes nothing worse", time.Duration(0), p.wait(now, false))
		p.post(now)
		now = now.Add(time.Second)
	}
	apitest.Diff(t, "the third waits for a token", 8*time.Second, p.wait(now, false))
	apitest.Diff(t, "what gets worse does not", time.Duration(0), p.wait(now, true))
	p.post(now)
	now = now.Add(time.Second)
	apitest.Diff(t, "the bucket is empty", 7*time.Second, p.wait(now, true))
	apitest.Diff(t, "a token that is left, and one to take", 17*time.Second, p.wait(now, false))
}

// FuzzPacer checks the promises for changes that come at any times: never more
// posts than the burst and what was earned since, never two within the fold,
// and a caller that waits as long as required may post.
func FuzzPacer(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0})
	f.Add([]byte{255, 1, 0, 7, 255, 255, 3, 0, 0, 0, 0, 200})
	f.Add([]byte{9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9})
	f.Fuzz(func(t *testing.T, gaps []byte) {
		p := newPacer()
		now := apitest.Epoch
		var posts []time.Time
		for _, gap := range gaps {
			// From 0 to more than a minute, with many short ones.
			now = now.Add(time.Duration(gap) * time.Duration(gap) * time.Millisecond)
			wait := p.wait(now, true)
			if wait < 0 || wait > p.refill {
				t.Fatalf("wait of %v", wait)
			}
			if gap%3 == 0 {
				if wait > 0 && p.wait(now.Add(wait-1), true) == 0 {
					t.Fatalf("waiting %v was too long", wait)
				}
				now = now.Add(wait)
				if left := p.wait(now, true); left != 0 {
					t.Fatalf("%v left after the wait", left)
				}
			} else if wait > 0 {
				continue
			}
			p.post(now)
			posts = append(posts, now)
		}
		for i, from := range posts {
			if i > 0 && from.Sub(posts[i-1]) < p.fold {
				t.Fatalf("two posts within %v", from.Sub(posts[i-1]))
			}
			for j, to := range posts[i:] {
				if most := p.burst + int(to.Sub(from)/p.refill); j+1 > most {
					t.Fatalf("%d posts within %v, want at most %d", j+1, to.Sub(from), most)
				}
			}
		}
	})
}

package probe

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// hanging is a filesystem whose statfs(2) may hang.
type hanging struct {
	gate    atomic.Pointer[chan struct{}] // nil while it does not hang
	delay   atomic.Int64                  // how long an answer takes otherwise
	avail   atomic.Uint64                 // the answer, in blocks
	workers atomic.Int32                  // calls under way
}

func (h *hanging) hang() { c := make(chan struct{}); h.gate.Store(&c) }

// release lets the calls that hang return.
func (h *hanging) release() { close(*h.gate.Swap(nil)) }

func (h *hanging) statfs(path []byte, st *unix.Statfs_t) error {
	h.workers.Add(1)
	defer h.workers.Add(-1)
	avail := h.avail.Load() // what the kernel answers is as old as the question
	if c := h.gate.Load(); c != nil {
		<-*c
	}
	time.Sleep(time.Duration(h.delay.Load()))
	err := fakeStatfs(path, st)
	st.Bavail = avail
	return err
}

// hangTest runs test in a bubble, with both filesystems answering "250 blocks".
func hangTest(t *testing.T, test func(t *testing.T, s *Sampler, nodefs, imagefs *hanging)) {
	n := fullMachine.boot(t)
	synctest.Test(t, func(t *testing.T) {
		s, err := New(n.config())
		probetest.Must(t, err)
		defer s.Close()
		var nodefs, imagefs hanging
		nodefs.avail.Store(250)
		imagefs.avail.Store(250)
		s.disks.nodefs.call, s.disks.imagefs.call = nodefs.statfs, imagefs.statfs
		if d := diff(fullSnapshot(), *s.Sample()); d != "" {
			t.Fatalf("before anything hangs (-want +got):\n%s", d)
		}
		test(t, s, &nodefs, &imagefs)
	})
}

// checkHung fails unless of all sources only hung have no answer.
func checkHung(t *testing.T, name string, s *Snapshot, hung ...Source) {
	t.Helper()
	want := fullSnapshot()
	for _, src := range hung {
		err := s.Errors[src]
		probetest.CheckError(t, err, deadline.ErrNoAnswer)
		want.Errors[src] = err
		space, inodes := NodeFsAvailable, NodeFsInodesFree
		if src == SourceImageFs {
			space, inodes = ImageFsAvailable, ImageFsInodesFree
		}
		want.Signals[space], want.Signals[inodes] = Observation{Err: err}, Observation{Err: err}
	}
	if d := diff(want, *s); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

// sampleFor takes a sample and fails unless it lasts that long.
func sampleFor(t *testing.T, s *Sampler, want time.Duration) *Snapshot {
	t.Helper()
	snap := s.Sample()
	if snap.Took != want {
		t.Errorf("the sample took %s, want %s", snap.Took, want)
	}
	return snap
}

func TestHungFilesystem(t *testing.T) {
	hangTest(t, func(t *testing.T, s *Sampler, nodefs, _ *hanging) {
		nodefs.hang()
		first := *sampleFor(t, s, defaultStatfsTimeout)
		checkHung(t, "first sample", &first, SourceNodeFs)
		for range 5 {
			time.Sleep(time.Second)
			snap := sampleFor(t, s, 0) // it is waited for once only
			checkHung(t, "later", snap, SourceNodeFs)
			if was, is := first.Errors[SourceNodeFs].Error(), snap.Errors[SourceNodeFs].Error(); was != is {
				t.Errorf("the message changes: %s, %s", was, is)
			}
			if n := nodefs.workers.Load(); n != 1 {
				t.Errorf("%d calls under way, want 1", n)
			}
		}
		// What comes back was asked long ago; the next sample asks anew.
		nodefs.avail.Store(100)
		nodefs.release()
		synctest.Wait()
		o := sampleFor(t, s, 0).Signals[NodeFsAvailable]
		if want := observe(100*4096, 1000*4096); o != want {
			t.Errorf("recovered: %+v, want %+v", o, want)
		}
	})
}

func TestBothFilesystemsHungCostOneTimeout(t *testing.T) {
	hangTest(t, func(t *testing.T, s *Sampler, nodefs, imagefs *hanging) {
		nodefs.hang()
		imagefs.hang()
		checkHung(t, "first", sampleFor(t, s, defaultStatfsTimeout), SourceNodeFs, SourceImageFs)
		checkHung(t, "second", sampleFor(t, s, 0), SourceNodeFs, SourceImageFs)
		imagefs.release()
		synctest.Wait()
		checkHung(t, "imagefs is back", sampleFor(t, s, 0), SourceNodeFs)
		nodefs.release()
		synctest.Wait()
		checkHung(t, "both are back", sampleFor(t, s, 0))
	})
}

func TestSlowFilesystems(t *testing.T) {
	hangTest(t, func(t *testing.T, s *Sampler, nodefs, imagefs *hanging) {
		nodefs.delay.Store(int64(time.Second))
		imagefs.delay.Store(int64(defaultStatfsTimeout - 1))
		checkHung(t, "just in time", sampleFor(t, s, defaultStatfsTimeout-1))

		// Late by 1.5 s: not even the next sample, which lasts 1 s, sees it.
		imagefs.delay.Store(int64(defaultStatfsTimeout + 3*time.Second/2))
		checkHung(t, "late", sampleFor(t, s, defaultStatfsTimeout), SourceImageFs)
		imagefs.delay.Store(0)
		checkHung(t, "still out", sampleFor(t, s, time.Second), SourceImageFs)
		time.Sleep(time.Second)
		checkHung(t, "back", sampleFor(t, s, time.Second))
	})
}

// An answer that comes while a later sample is under way counts: it cannot be
// had any fresher.
func TestAnswerDuringLaterSample(t *testing.T) {
	hangTest(t, func(t *testing.T, s *Sampler, nodefs, imagefs *hanging) {
		nodefs.hang()
		sampleFor(t, s, defaultStatfsTimeout)
		imagefs.delay.Store(int64(time.Second))
		go func() {
			time.Sleep(time.Second / 2)
			nodefs.release()
		}()
		checkHung(t, "not waited for", sampleFor(t, s, time.Second), SourceNodeFs)
		checkHung(t, "back", sampleFor(t, s, time.Second))
	})
}

// The timeout counts from the beginning of the sample, whatever else it spends
// its time on.
func TestStatfsTimeoutIsConfigurable(t *testing.T) {
	n := fullMachine.boot(t)
	synctest.Test(t, func(t *testing.T) {
		s := n.sampler(t, func(c *Config) {
			c.StatfsTimeout, c.Kernel = 300*time.Millisecond, slowKernel(200*time.Millisecond)
		})
		defer s.Close()
		var h hanging
		h.hang()
		s.disks.imagefs.call = h.statfs
		sampleFor(t, s, 300*time.Millisecond)
		h.release()
	})
}

// slowKernel takes that long to answer.
type slowKernel time.Duration

func (k slowKernel) Counters() bpf.Counters { time.Sleep(time.Duration(k)); return bpf.Counters{} }

// The bubble fails by itself if a worker is left when it ends.
func TestCloseEndsWorkers(t *testing.T) {
	hangTest(t, func(t *testing.T, s *Sampler, nodefs, imagefs *hanging) {
		nodefs.hang()
		s.Sample()
		s.Close() // returns at once, though a worker hangs
		if n := nodefs.workers.Load(); n != 1 {
			t.Errorf("%d calls under way, want 1", n)
		}
		nodefs.release()
		s.Close() // twice does no harm
	})
}

func TestCloseBeforeSample(t *testing.T) {
	s, err := New(fullMachine.boot(t).config())
	probetest.Must(t, err)
	s.Close()
}

// Flapping for hours must not pile anything up.
func TestHangsAgainAndAgain(t *testing.T) {
	hangTest(t, func(t *testing.T, s *Sampler, nodefs, imagefs *hanging) {
		for range 200 {
			nodefs.hang()
			imagefs.hang()
			checkHung(t, "hung", sampleFor(t, s, defaultStatfsTimeout), SourceNodeFs, SourceImageFs)
			s.Sample()
			nodefs.release()
			imagefs.release()
			synctest.Wait()
			if n := nodefs.workers.Load() + imagefs.workers.Load(); n != 0 {
				t.Fatalf("%d calls under way, want 0", n)
			}
			checkHung(t, "back", sampleFor(t, s, 0))
		}
	})
}

func TestHungMessageNamesDirectory(t *testing.T) {
	hangTest(t, func(t *testing.T, s *Sampler, nodefs, _ *hanging) {
		nodefs.hang()
		at := time.Now().Format(time.TimeOnly)
		err := s.Sample().Errors[SourceNodeFs]
		if !strings.HasSuffix(err.Error(), "/var/lib/kubelet: no answer within 2s, asked at "+at) {
			t.Errorf("error %q", err)
		}
		nodefs.release()
	})
}

package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"
)

// patientTest is hangTest with a DiskPatience.
func patientTest(t *testing.T, test func(t *testing.T, s *Sampler, nodefs *hanging)) {
	n := fullMachine.boot(t)
	synctest.Test(t, func(t *testing.T) {
		s := n.sampler(t, func(c *Config) { c.DiskPatience = 50 * time.Millisecond })
		defer s.Close()
		var nodefs, imagefs hanging
		nodefs.avail.Store(250)
		imagefs.avail.Store(250)
		s.disks.nodefs.call, s.disks.imagefs.call = nodefs.statfs, imagefs.statfs
		checkHung(t, "before anything hangs", s.Sample())
		test(t, s, &nodefs)
	})
}

// woken returns whether something has asked for a sample.
func woken(s *Sampler) bool {
	select {
	case cause := <-s.wake:
		return cause == CauseDisk
	default:
		return false
	}
}

// Memory and PIDs do not wait for a disk that is slow. It keeps its last figures until the
// answer is there, and that gets a sample.
func TestSlowDiskIsNotWaitedFor(t *testing.T) {
	patientTest(t, func(t *testing.T, s *Sampler, nodefs *hanging) {
		time.Sleep(10 * time.Second)
		nodefs.delay.Store(int64(300 * time.Millisecond))
		nodefs.avail.Store(100)
		checkHung(t, "slow", sampleFor(t, s, 50*time.Millisecond)) // the figures of before
		if woken(s) {
			t.Error("a sample is wanted before there is an answer")
		}
		time.Sleep(250 * time.Millisecond)
		synctest.Wait()
		if !woken(s) {
			t.Error("the answer gets no sample")
		}
		o := sampleFor(t, s, 50*time.Millisecond).Signals[NodeFsAvailable]
		if want := observe(100*4096, 1000*4096); o != want {
			t.Errorf("got %+v, want %+v", o, want)
		}
		time.Sleep(250 * time.Millisecond)
		synctest.Wait()
		if woken(s) {
			t.Error("each answer gets a sample, and each sample a question")
		}
		nodefs.delay.Store(0)
		nodefs.avail.Store(250)
		checkHung(t, "fast again", sampleFor(t, s, 0))
	})
}

// A disk that hangs is reported once the timeout is over, and keeps nothing waiting then
// either, nor when it is back for a while.
func TestHungDiskIsReportedInTime(t *testing.T) {
	patientTest(t, func(t *testing.T, s *Sampler, nodefs *hanging) {
		for range 3 {
			nodefs.hang()
			checkHung(t, "not for long", sampleFor(t, s, 50*time.Millisecond))
			time.Sleep(time.Second)
			checkHung(t, "not yet", sampleFor(t, s, 0))
			time.Sleep(time.Second)
			hung := sampleFor(t, s, 0)
			checkHung(t, "hung", hung, SourceNodeFs)
			if text := fmt.Sprint(hung.Errors[SourceNodeFs]); !strings.Contains(text, "no answer within 2s") {
				t.Errorf("the error does not have the timeout: %s", text)
			}
			nodefs.release()
			synctest.Wait()
			checkHung(t, "back", sampleFor(t, s, 0))
			time.Sleep(10 * time.Second)
		}
	})
}

// What is read once a minute is not waited for either, and a late answer counts.
func TestSlowFactsAreNotWaitedFor(t *testing.T) {
	n := fullMachine.boot(t)
	s := n.sampler(t, func(c *Config) { c.DiskPatience, c.StatfsTimeout = time.Millisecond, time.Hour })
	defer s.Close()
	if d := diff(fullSnapshot(), *sampleOrHang(t, s)); d != "" {
		t.Fatalf("before anything hangs (-want +got):\n%s", d)
	}
	for _, file := range []string{"proc/1/mountinfo", "etc/os-release"} {
		text := fullMachine[file]
		n.fifo(t, file)
		s.machineRead = time.Time{}
		for range 3 {
			if d := diff(fullSnapshot(), *sampleOrHang(t, s)); d != "" {
				t.Errorf("%s hangs (-want +got):\n%s", file, d)
			}
		}
		if file == "etc/os-release" {
			text = "PRETTY_NAME=\"Another\"\n"
		}
		n.answer(t, file, text)
	}
	for end := time.Now().Add(30 * time.Second); sampleOrHang(t, s).Machine.OSImage != "Another" || s.disks.mountsLate.pending; {
		if time.Now().After(end) {
			t.Fatalf("the late answer does not count: %+v", s.current.Machine)
		}
	}
	probetest.CheckError(t, s.current.Errors[SourceMounts], nil)
}

// A mount that changes while the table is still being read is not missed, whatever samples
// come before the answer.
func TestMountChangesWhileTableIsRead(t *testing.T) {
	const file = "proc/1/mountinfo"
	n := fullMachine.boot(t)
	s := n.sampler(t, func(c *Config) { c.DiskPatience, c.StatfsTimeout = time.Millisecond, time.Hour })
	defer s.Close()
	sampleOrHang(t, s)
	n.fifo(t, file)
	for range 2 {
		s.Wake(CauseMounts)
		sampleOrHang(t, s)
	}
	sampleOrHang(t, s)
	fd, err := -1, error(unix.ENXIO)
	for end := time.Now().Add(30 * time.Second); errors.Is(err, unix.ENXIO) && time.Now().Before(end); { // nobody reads yet
		fd, err = unix.Open(n.Path(file), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	}
	probetest.Must(t, err)
	n.Remove(t, file)
	n.Write(t, file, strings.ReplaceAll(fullMachine[file], "rw", "ro"))
	_, err = unix.Write(fd, []byte(fullMachine[file]))
	probetest.Must(t, err)
	unix.Close(fd)
	for end := time.Now().Add(10 * time.Second); ; {
		if _, ro := sampleOrHang(t, s).NodeFs.Mount.ReadOnly(); ro {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the later change is not seen: %+v", s.current.NodeFs.Mount)
		}
	}
}

// runFor runs the sampler for that long, and returns what its samples say about nodefs:
// each change, and after how long it came.
func runFor(t *testing.T, s *Sampler, d time.Duration) (changes []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	began, last := time.Now(), ""
	err := s.Run(ctx, func(snap *Snapshot) time.Duration {
		state := "answers"
		if err := snap.Errors[SourceNodeFs]; err != nil {
			state = strings.TrimPrefix(err.Error(), s.disks.nodefs.what+": ")
		}
		if state != last {
			changes = append(changes, fmt.Sprint(time.Since(began), " ", state))
		}
		last = state
		return 0
	})
	probetest.CheckError(t, err, context.DeadlineExceeded)
	return changes
}

// A disk that hangs is reported when the timeout is over: no other sample need come by.
func TestHungDiskGetsSample(t *testing.T) {
	patientTest(t, func(t *testing.T, s *Sampler, nodefs *hanging) {
		nodefs.hang()
		at := time.Now().Format(time.TimeOnly)
		got := runFor(t, s, 9*time.Second)
		want := []string{"50ms answers", "2s no answer within 2s, asked at " + at}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if taken := s.Causes(); taken[CauseDisk] != 1 {
			t.Errorf("it gets %d samples, want 1", taken[CauseDisk])
		}
		nodefs.release()
	})
}

// A disk that takes too long each time is late until an answer comes in time, and for the
// same reason all the while.
func TestDiskThatIsAlwaysLate(t *testing.T) {
	for _, takes := range []time.Duration{2100 * time.Millisecond, 3 * time.Second, 9900 * time.Millisecond, 11 * time.Second} {
		for _, interval := range []time.Duration{10 * time.Second, 700 * time.Millisecond} {
			patientTest(t, func(t *testing.T, s *Sampler, nodefs *hanging) {
				s.SetInterval(interval)
				nodefs.delay.Store(int64(takes))
				at := time.Now().Format(time.TimeOnly)
				got := runFor(t, s, 10*time.Minute)
				want := []string{"50ms answers", "2s no answer within 2s, asked at " + at}
				if !slices.Equal(got, want) {
					t.Errorf("%s each %s: got %q, want %q", takes, interval, got, want)
				}
				nodefs.delay.Store(int64(time.Second))
				time.Sleep(time.Minute)
				s.Sample()
				time.Sleep(2 * time.Second)
				checkHung(t, "in time again", s.Sample())
				time.Sleep(2 * time.Second)
			})
		}
	}
}

// Whether an answer came in time does not depend on when the sampler finds it.
func TestLateAnswerFoundLater(t *testing.T) {
	patientTest(t, func(t *testing.T, s *Sampler, nodefs *hanging) {
		nodefs.avail.Store(100)
		nodefs.delay.Store(int64(1999 * time.Millisecond))
		s.Sample()
		time.Sleep(time.Minute)
		nodefs.hang()
		o := s.Sample().Signals[NodeFsAvailable]
		if want := observe(100*4096, 1000*4096); o != want {
			t.Errorf("in time: got %+v, want %+v", o, want)
		}
		nodefs.release()
		time.Sleep(2 * time.Second)
		nodefs.avail.Store(250)
		s.Sample()
		nodefs.delay.Store(int64(2 * time.Second))
		time.Sleep(2 * time.Second)
		checkHung(t, "in time, again", s.Sample())
		time.Sleep(time.Minute)
		nodefs.hang()
		checkHung(t, "not in time", s.Sample(), SourceNodeFs)
		nodefs.release()
		time.Sleep(2 * time.Second)
	})
}

// A call that has answered, but whose goroutine has not come to say so, does not take the
// wake that a later call is to bring.
func TestWakeBelongsToCall(t *testing.T) {
	patientTest(t, func(t *testing.T, s *Sampler, nodefs *hanging) {
		var calls atomic.Int32
		f, gate := s.disks.nodefs, make(chan struct{})
		synctest.Wait()
		f.worker.OnAnswer(func(asked time.Time) {
			if calls.Add(1) == 1 {
				<-gate
			}
			f.late.answered(asked)
		})
		s.Sample()
		nodefs.delay.Store(int64(300 * time.Millisecond))
		time.Sleep(time.Second)
		s.Sample()
		close(gate)
		synctest.Wait()
		if woken(s) {
			t.Error("an answer that is known already gets a sample")
		}
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		if !woken(s) {
			t.Error("the answer gets no sample")
		}
	})
}

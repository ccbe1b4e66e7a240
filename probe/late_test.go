package probe

import (
	"errors"
	"fmt"
	"strings"
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

package probe

import (
	"errors"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/deadline"
	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"
	"golang.org/x/sys/unix"
)

func TestRealHungFilesystem(t *testing.T) {
	n := fullMachine.boot(t)
	f := probetest.NewFUSE(t, n.Path("var/lib/kubelet"))
	s, err := New(Config{
		Procfs: n.Path("proc"), Sysfs: n.Path("sys"), Rootfs: n.Dir,
		RootDirectory: "/var/lib/kubelet", ImageDirectories: []string{"/etc"},
		Interval: 10 * time.Second, StatfsTimeout: time.Second,
	})
	probetest.Must(t, err)
	t.Cleanup(s.Close)
	// wait samples until nodefs has an answer: how long that takes is not for a
	// test to say.
	wait := func() {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); s.Sample().Errors[SourceNodeFs] != nil; {
			if time.Now().After(deadline) {
				t.Fatalf("no answer within 30 s: %v", s.current.Errors[SourceNodeFs])
			}
		}
		if d := diff(fullSnapshot(), s.withoutImageFs()); d != "" {
			t.Errorf("with an answer (-want +got):\n%s", d)
		}
	}
	wait()
	for range 2 {
		f.SetSilent(true)
		for range 3 {
			s.Sample()
			err := s.current.Errors[SourceNodeFs]
			probetest.CheckError(t, err, deadline.ErrNoAnswer)
			want := fullSnapshot()
			want.Errors[SourceNodeFs] = err
			want.Signals[NodeFsAvailable], want.Signals[NodeFsInodesFree] = Observation{Err: err}, Observation{Err: err}
			if d := diff(want, s.withoutImageFs()); d != "" {
				t.Errorf("hung (-want +got):\n%s", d)
			}
		}
		for deadline := time.Now().Add(30 * time.Second); f.Unanswered() == 0 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond) // a busy machine has not made the call yet
		}
		if n := f.Unanswered(); n != 1 {
			t.Errorf("%d calls hang, want 1", n)
		}
		f.SetSilent(false)
		wait()
	}

	// A daemon that is stopped while a filesystem hangs must not hang as well.
	f.SetSilent(true)
	probetest.CheckError(t, s.Sample().Errors[SourceNodeFs], deadline.ErrNoAnswer)
	s.Close()
}

// withoutImageFs is the latest snapshot with the made-up imagefs, in place of the
// real disk that the test uses for it. A busy one may have no answer in time.
func (s *Sampler) withoutImageFs() Snapshot {
	snap, want := s.current, fullSnapshot()
	for _, sig := range []Signal{ImageFsAvailable, ImageFsInodesFree} {
		if err := snap.Signals[sig].Err; err == nil || errors.Is(err, deadline.ErrNoAnswer) {
			snap.Signals[sig] = want.Signals[sig]
		}
	}
	if errors.Is(snap.Errors[SourceImageFs], deadline.ErrNoAnswer) {
		snap.Errors[SourceImageFs] = nil
	}
	return snap
}

// A mount whose server has died answers at once, with an error.
func TestRealDeadFilesystem(t *testing.T) {
	f := probetest.NewFUSE(t, t.TempDir())
	fs := newFilesystem("/", []string{f.Dir, "/"})
	ask := func() error {
		now := time.Now()
		fs.start(now)
		fs.finish(now, waits{100 * time.Millisecond, 100 * time.Millisecond})
		_, _, err := fs.observations()
		return err
	}
	f.SetSilent(true)
	probetest.CheckError(t, ask(), deadline.ErrNoAnswer)

	pin, err := unix.Open(f.Dir, unix.O_PATH|unix.O_CLOEXEC, 0) // keeps it mounted
	probetest.Must(t, err)
	defer unix.Close(pin)
	if err := unix.Unmount(f.Dir, unix.MNT_FORCE); err != unix.EBUSY { // aborts the connection
		t.Fatalf("unmount: %v", err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		err := ask()
		if errors.Is(err, unix.ENOTCONN) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after 30 s: %v", err)
		}
	}
}

package probetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// FUSE is a filesystem in this process that knows one thing: its size. It
// can keep that to itself, and then statfs(2) hangs in the kernel as it does on
// a dead NFS server. It does so to this process alone: a monitor may be asking all
// mounts of the machine how full they are.
type FUSE struct {
	fd  int
	Dir string

	mu      sync.Mutex
	silent  bool
	pending []fuseRequest // those that were not answered
}

// fuseRequest is what the kernel waits for.
type fuseRequest struct {
	opcode uint32
	unique uint64
}

// What the kernel sends and wants back: include/uapi/linux/fuse.h.
const (
	fuseForget    = 2
	fuseStatfs    = 17
	fuseInit      = 26
	fuseInterrupt = 36

	fuseHeaderLen = 40
)

// NewFUSE mounts a FUSE at dir, or skips the test where that cannot be
// done. Afterwards nothing of it is left, whatever hangs.
func NewFUSE(t *testing.T, dir string) *FUSE {
	t.Helper()
	skip := func(err error) {
		t.Helper()
		_, statErr := os.Stat("/dev/fuse")
		if os.Getenv("NODEPROBE_REQUIRE") == "1" && statErr == nil {
			t.Fatalf("NODEPROBE_REQUIRE=1: FUSE: %v", err)
		}
		t.Skipf("FUSE: %v", err)
	}
	if os.Geteuid() != 0 {
		skip(errors.New("needs root"))
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		skip(fmt.Errorf("open /dev/fuse: %w", err))
	}
	f := &FUSE{fd: fd, Dir: dir}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount("nodeprobe-test", f.Dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		skip(fmt.Errorf("mount: %w", err))
	}
	served := make(chan error)
	go func() { served <- f.serve() }()
	t.Cleanup(func() {
		// MNT_FORCE aborts the connection: every call that hangs fails, and
		// serve ends.
		if err := unix.Unmount(f.Dir, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		unix.Close(fd)
		// For a moment after it was unmounted, an empty directory may not be removable,
		// and who removes t.TempDir tries once.
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if below, err := os.ReadDir(f.Dir); err == nil && len(below) > 0 || os.Remove(f.Dir) == nil {
				return
			}
		}
		t.Errorf("%s cannot be removed", f.Dir)
	})
	return f
}

// serve answers requests until the connection is aborted.
func (f *FUSE) serve() error {
	buf := make([]byte, 1<<17)
	for {
		n, err := unix.Read(f.fd, buf)
		switch {
		case err == unix.EINTR || err == unix.ENOENT: // a request that was interrupted
			continue
		case err == unix.ENODEV:
			return nil
		case err != nil:
			return err
		case n < fuseHeaderLen:
			return fmt.Errorf("request of %d bytes", n)
		}
		opcode, unique := binary.NativeEndian.Uint32(buf[4:]), binary.NativeEndian.Uint64(buf[8:])
		switch opcode {
		case fuseInit:
			out := make([]byte, 64)
			binary.NativeEndian.PutUint32(out[0:], 7)
			binary.NativeEndian.PutUint32(out[4:], 31)
			binary.NativeEndian.PutUint32(out[20:], 1<<16) // max_write
			f.reply(unique, 0, out)
		case fuseForget, fuseInterrupt: // want no reply
		default:
			r := fuseRequest{opcode, unique}
			if !isThread(binary.NativeEndian.Uint32(buf[32:])) {
				f.answer(r)
				continue
			}
			f.mu.Lock()
			f.pending = append(f.pending, r)
			silent := f.silent
			f.mu.Unlock()
			if !silent {
				f.answerAll()
			}
		}
	}
}

// isThread reports whether this process has the thread.
func isThread(id uint32) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", id))
	return err == nil
}

func (f *FUSE) reply(unique uint64, errno unix.Errno, body []byte) {
	out := make([]byte, 16, 16+len(body))
	binary.NativeEndian.PutUint32(out[0:], uint32(16+len(body)))
	binary.NativeEndian.PutUint32(out[4:], uint32(-int32(errno)))
	binary.NativeEndian.PutUint64(out[8:], unique)
	unix.Write(f.fd, append(out, body...)) // fails only if nobody waits any more
}

// answerAll answers every request that was not.
func (f *FUSE) answerAll() {
	f.mu.Lock()
	pending := f.pending
	f.pending = nil
	f.mu.Unlock()
	for _, r := range pending {
		f.answer(r)
	}
}

func (f *FUSE) answer(r fuseRequest) {
	if r.opcode != fuseStatfs {
		f.reply(r.unique, unix.ENOSYS, nil)
		return
	}
	out := make([]byte, 80)
	for i, v := range []uint64{1000, 300, 250, 600, 500} { // as fakeStatfs
		binary.NativeEndian.PutUint64(out[8*i:], v)
	}
	binary.NativeEndian.PutUint32(out[40:], 512)  // bsize
	binary.NativeEndian.PutUint32(out[48:], 4096) // frsize
	f.reply(r.unique, 0, out)
}

func (f *FUSE) SetSilent(silent bool) {
	f.mu.Lock()
	f.silent = silent
	f.mu.Unlock()
	if !silent {
		f.answerAll()
	}
}

func (f *FUSE) Unanswered() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.pending)
}

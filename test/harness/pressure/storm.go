package pressure

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
)

// Storm has a machine thrash: a hog locks memory until next to nothing is available,
// and readers cycle through more data on a disk than still fits. What runs from that
// disk loses its text to them again and again. The hog is the one to be killed if
// memory runs out.
//
// The children are this program: once it has locked itself with Lock, what they run is
// in memory too.
type Storm struct {
	hog, burst *child
	readers    []*child
}

const (
	readers  = 3
	readSize = 700 << 20 // of each reader's file
	runSize  = 96 << 20
	// maxMemory is how much the hog may have to lock: 64 GiB take half a minute.
	maxMemory = 64 << 30
	// leastAvailable is where nothing would move any more.
	leastAvailable = 190 << 20
	// firstAvailable is what the first storm begins with, a breeze.
	firstAvailable = 340 << 20
	// calmAvailable is what the hog leaves between storms, so that the next one need
	// not begin with all of the machine's memory.
	calmAvailable = 3 << 30
)

// NewStorm prepares a storm until the test ends: the hog, readers of 2 GiB in files, and a
// burst of so many tasks. The directory must be on a disk, and is the caller's to remove.
// The test is skipped where there can be no storm.
func NewStorm(t testing.TB, dir string, tasks int64) *Storm {
	t.Helper()
	if why := must.Get(noStorm(dir))(t); why != "" {
		need.Skip(t, "no storm here: "+why)
	}
	start := func(r role) *child {
		c := must.Get(startChild(r))(t)
		t.Cleanup(func() { must.Note(t, c.release()) })
		return c
	}
	s := &Storm{burst: start(role{Burst: tasks})}
	for i := range readers {
		file := filepath.Join(dir, fmt.Sprint("read-", i))
		must.OK(t, writeFile(file, readSize))
		s.readers = append(s.readers, start(role{Read: file}))
	}
	s.readers = append(s.readers, start(role{Read: filepath.Join(dir, "read-0"), Runs: runSize}))
	must.OK(t, s.feed())
	t.Cleanup(func() { must.Note(t, s.hog.release()) })
	return s
}

// noStorm says why there can be none.
func noStorm(dir string) (why string, err error) {
	var fs unix.Statfs_t
	total, _, err := systemMemory()
	err = errors.Join(err, unix.Statfs(dir, &fs))
	_, psi := os.Stat("/proc/pressure/memory")
	limit, limitErr := ownMemoryLimit()
	swaps, swapErr := os.ReadFile("/proc/swaps")
	switch err = errors.Join(err, limitErr, swapErr); {
	case err != nil:
		return "", fmt.Errorf("prepare storm: %w", err)
	case os.Geteuid() != 0:
		return "needs root", nil
	case bytes.Count(swaps, []byte("\n")) > 1: // the first line is the table's head
		return "swap is on, and takes what a storm needs (swapoff -a)", nil
	case total > maxMemory:
		return fmt.Sprintf("locking %d GiB of memory would take too long (at most %d)", total>>30, int64(maxMemory)>>30), nil
	case total < 2<<30:
		return fmt.Sprintf("%d MiB of memory are too little for a control plane beside it", total>>20), nil
	case limit < total:
		return fmt.Sprintf("this process is in a cgroup that may have %d of the machine's %d MiB of memory", limit>>20, total>>20), nil
	case psi != nil:
		return "the kernel has no PSI, which tells a storm from a calm", nil
	case fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC:
		return dir + " is in memory, and has to be on a disk (TMPDIR)", nil
	case int64(fs.Bavail)*fs.Frsize < readers*readSize+1<<30:
		return fmt.Sprintf("%d MiB on the disk of %s are too little (TMPDIR)", int64(fs.Bavail)*fs.Frsize>>20, dir), nil
	}
	return "", nil
}

// ownMemoryLimit is what the cgroups of this process, and those above them, let it have.
func ownMemoryLimit() (int64, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0, err
	}
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return 0, err
	}
	limit := int64(math.MaxInt64)
	for line := range strings.Lines(string(own)) {
		// 4:memory:/a/b of v1, 0::/a/b of v2
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		root, v2, err := cgroupRoot(mountinfo, "memory", func(string) bool { return true })
		if err != nil || len(f) < 3 || v2 != (f[1] == "") || !v2 && !slices.Contains(strings.Split(f[1], ","), "memory") {
			continue
		}
		for dir := f[2]; ; dir = filepath.Dir(dir) {
			// The root of all has no limit; that of a namespace may.
			text, err := os.ReadFile(filepath.Join(root, dir, limitFile("memory", v2)))
			if n, scanErr := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil && scanErr == nil {
				limit = min(limit, n)
			}
			if dir == "/" || dir == "." {
				break
			}
		}
	}
	return limit, nil
}

// Lock keeps in memory what this process has, text included, and what it touches from
// then on. It needs root, and is not for a build with the race detector, whose shadow
// memory has no bounds.
func Lock() error {
	err := unix.Mlockall(unix.MCL_CURRENT)
	if err == nil {
		// What is new only once it is touched: the stack of a thread may be 8 MiB.
		err = unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT)
	}
	return os.NewSyscallError("mlockall", err)
}

// Begin makes the storm: it returns when next to no memory is available. The storm then
// finds its strength, but until CrossMemory memory.available does not fall below a
// figure. The hog ends after a time in any case, and the storm with it.
func (s *Storm) Begin(above int64, atMost time.Duration) error {
	_, err := s.hog.ask(order{Do: doHold, Available: firstAvailable, Limit: above, Lasts: atMost})
	for _, r := range s.readers {
		if err == nil {
			_, err = r.ask(order{Do: doRead})
		}
	}
	return err
}

// feed has a hog take what it may have between storms.
func (s *Storm) feed() (err error) {
	if s.hog, err = startChild(role{Hog: true}); err != nil {
		return err
	}
	_, err = s.hog.ask(order{Do: doHold, Available: calmAvailable})
	return err
}

// ErrHogKilled means that a storm was too much of one. There is a new hog then.
var ErrHogKilled = errors.New("the hog was killed for lack of memory")

// End ends it, and leaves everything as it was before Begin but for what the hog keeps
// for the next one.
func (s *Storm) End() (err error) {
	for _, r := range s.readers {
		_, readErr := r.ask(order{Do: doRest})
		err = errors.Join(err, readErr)
	}
	err = errors.Join(err, s.GiveTasks())
	if _, hogErr := s.hog.ask(order{Do: doHold, Available: calmAvailable}); hogErr != nil {
		if exit, ok := errors.AsType[*exec.ExitError](s.hog.release()); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL { //nolint:forcetypeassert // it is always one on Linux
			return errors.Join(err, hogErr)
		}
		err = errors.Join(err, s.feed(), ErrHogKilled)
	}
	return err
}

// CrossTasks starts all tasks of the burst, in which pid.available falls below a limit.
func (s *Storm) CrossTasks(limit int64) (Crossing, error) {
	return s.burst.ask(order{Do: doCross, Limit: limit})
}

// GiveTasks ends the tasks of the burst.
func (s *Storm) GiveTasks() error {
	_, err := s.burst.ask(order{Do: doRest})
	return err
}

// CrossMemory has the hog lock more, until memory.available is below the limit that
// Begin was told. From then on the storm is as strong as it likes.
func (s *Storm) CrossMemory(limit int64) (Crossing, error) {
	return s.hog.ask(order{Do: doCross, Limit: limit})
}

func writeFile(name string, size int64) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer file.Close()
	data := make([]byte, 4<<20)
	for i := range data {
		data[i] = byte(i) // what reads as zeros may not be on the disk at all
	}
	for written := int64(0); written < size && err == nil; written += int64(len(data)) {
		_, err = file.Write(data)
	}
	return errors.Join(err, file.Sync())
}

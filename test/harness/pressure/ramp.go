package pressure

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// Ramp is a pressure that grows by small steps within this process, so that who
// takes a step knows when it was. What a Ramp holds ends with the process. Its
// methods are not safe for concurrent use.
type Ramp interface {
	// Available reads from the kernel what there is left, in the unit of Take.
	Available() (int64, error)
	// Take holds so much more: bytes or tasks.
	Take(n int64) error
	// Give lets go of so much of it, or of all if that is less.
	Give(n int64) error
	// Close lets go of everything.
	Close() error
}

// memoryRamp is a mapping whose pages are touched from its beginning up to
// held.
type memoryRamp struct {
	files   *memoryFiles
	mapping []byte
	held    int64
}

// MemoryRamp returns a Ramp of anonymous memory that holds no more than so many
// bytes. It refuses what would leave the machine with less than a tenth of its
// memory.
func MemoryRamp(most int64) (Ramp, error) {
	total, available, err := systemMemory()
	if err != nil {
		return nil, err
	}
	if available-most < total/10 {
		return nil, fmt.Errorf("hold %d MiB of memory: only %d of %d MiB are available", most>>20, available>>20, total>>20)
	}
	files, err := openMemory("")
	if err != nil {
		return nil, err
	}
	return newMemoryRamp(files, most)
}

// PodsRamp makes the cgroup of all pods, with a limit, puts this process into it, and
// returns a Ramp of that memory. It ends with the test.
func PodsRamp(t testing.TB, limit int64) Ramp {
	t.Helper()
	g := must.Get(planCgroup("memory"))(t)
	root := filepath.Dir(g.dir)
	g.dir = filepath.Join(root, "kubepods")
	// Another test may have it for a while.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if _, err := os.Stat(g.dir); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s exists: this machine has pods", g.dir)
		}
	}
	p := must.Get(g.start(limit, nil))(t)
	t.Cleanup(func() { must.Note(t, p.Release()) })
	files := must.Get(openMemory("/kubepods"))(t)
	files.total = limit
	must.OK(t, joinCgroup(g.dir))
	t.Cleanup(func() { must.Note(t, joinCgroup(root)) })
	return must.Get(newMemoryRamp(files, limit*3/4))(t)
}

func newMemoryRamp(files *memoryFiles, most int64) (Ramp, error) {
	mapping, err := unix.Mmap(-1, 0, int(most), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		files.close()
		return nil, fmt.Errorf("hold memory: %w", err)
	}
	// A huge page is a step of 2 MiB, however little was asked for. A kernel
	// without them says EINVAL.
	_ = unix.Madvise(mapping, unix.MADV_NOHUGEPAGE)
	return &memoryRamp{files: files, mapping: mapping}, nil
}

func (r *memoryRamp) Available() (int64, error) { return r.files.available() }

func (r *memoryRamp) Take(n int64) error {
	if r.held+n > int64(len(r.mapping)) {
		return fmt.Errorf("hold memory: %d MiB are held already", r.held>>20)
	}
	more := r.mapping[r.held : r.held+n]
	for i := 0; i < len(more); i += os.Getpagesize() {
		more[i] = 1
	}
	r.held += n
	return nil
}

func (r *memoryRamp) Give(n int64) error {
	n = min(n, r.held)
	if n == 0 {
		return nil
	}
	if err := unix.Madvise(r.mapping[r.held-n:r.held], unix.MADV_DONTNEED); err != nil {
		return fmt.Errorf("give memory back: %w", err)
	}
	r.held -= n
	return nil
}

func (r *memoryRamp) Close() error {
	r.files.close()
	return unix.Munmap(r.mapping)
}

// taskRamp is a number of threads that sleep.
type taskRamp struct {
	limit   int64
	loadavg *os.File
	buf     []byte
	held    int64
	end     chan struct{} // one value ends one thread
}

// TaskRamp returns a Ramp of threads of this process.
func TaskRamp() (Ramp, error) {
	limit, _, err := systemTasks()
	if err != nil {
		return nil, err
	}
	loadavg, err := os.Open("/proc/loadavg")
	if err != nil {
		return nil, fmt.Errorf("count tasks: %w", err)
	}
	return &taskRamp{limit: int64(limit), loadavg: loadavg, buf: make([]byte, 128), end: make(chan struct{})}, nil
}

func (r *taskRamp) Available() (int64, error) {
	line, err := readAgain(r.loadavg, r.buf)
	if err != nil {
		return 0, err
	}
	// 0.20 0.18 0.12 1/80 11206
	_, rest, _ := bytes.Cut(line, []byte("/"))
	used, _, _ := bytes.Cut(rest, []byte(" "))
	n, err := strconv.ParseInt(string(used), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("count tasks: %w", err)
	}
	return r.limit - n, nil
}

func (r *taskRamp) Take(n int64) error {
	left, err := r.Available()
	if err != nil {
		return err
	}
	// Beyond 10000 threads Go's runtime gives up.
	if left-n < 1000 || r.held+n > 8000 {
		return fmt.Errorf("hold %d tasks more: %d are held, %d are left", n, r.held, left)
	}
	started := make(chan struct{})
	for range n {
		go func() {
			// Never unlocked, so that the thread serves no other goroutine and
			// ends with this one.
			runtime.LockOSThread()
			started <- struct{}{}
			<-r.end
		}()
		<-started
		r.held++
	}
	return nil
}

func (r *taskRamp) Give(n int64) error {
	for range min(n, r.held) {
		r.end <- struct{}{}
		r.held--
	}
	return nil
}

func (r *taskRamp) Close() error { return errors.Join(r.Give(r.held), r.loadavg.Close()) }

// diskRamp is a file that is written to.
type diskRamp struct {
	fs      *Filesystem
	file    *os.File
	held    int64
	syncing chan error // of a btrfs, while what was taken is on its way to the disk
}

// Jump takes so much at once, if there is a way.
func Jump(r Ramp, n int64) error {
	if disk, ok := r.(*diskRamp); ok {
		return disk.Jump(n)
	}
	return r.Take(n)
}

// DiskRamp returns a Ramp of data in a file of the filesystem.
func DiskRamp(fs *Filesystem) (Ramp, error) {
	file, err := os.Create(filepath.Join(fs.Dir, "ramp"))
	if err != nil {
		return nil, fmt.Errorf("fill filesystem: %w", err)
	}
	return &diskRamp{fs: fs, file: file}, nil
}

func (r *diskRamp) Available() (int64, error) { return r.fs.Available() }

// zeros is what the file is filled with.
var zeros [64 << 10]byte

// Jump takes at once what Take would write. On a btrfs, what was taken or given counts
// once it is on the disk.
func (r *diskRamp) Jump(n int64) error { return errors.Join(r.wait(), r.jump(n)) }

func (r *diskRamp) jump(n int64) error {
	if err := unix.Fallocate(int(r.file.Fd()), 0, r.held, n); err != nil {
		return fmt.Errorf("fill filesystem: %w", err)
	}
	r.held += n
	return r.sync()
}

func (r *diskRamp) sync() error {
	if r.fs.Type != "btrfs" {
		return nil
	}
	return os.NewSyscallError("syncfs", unix.Syncfs(int(r.file.Fd())))
}

// take is Jump for a btrfs, and does not wait: until it counts, another one does nothing.
func (r *diskRamp) take(n int64) error {
	if r.syncing == nil {
		r.syncing = make(chan error, 1)
		go func() { r.syncing <- r.jump(n) }()
	}
	select {
	case err := <-r.syncing:
		r.syncing = nil
		return err
	default:
		return nil
	}
}

func (r *diskRamp) wait() (err error) {
	if r.syncing != nil {
		err, r.syncing = <-r.syncing, nil
	}
	return err
}

func (r *diskRamp) Take(n int64) error {
	if r.fs.Type == "btrfs" {
		return r.take(n)
	}
	for n > 0 {
		wrote, err := r.file.WriteAt(zeros[:min(n, int64(len(zeros)))], r.held)
		if err != nil {
			return fmt.Errorf("fill filesystem: %w", err)
		}
		r.held += int64(wrote)
		n -= int64(wrote)
	}
	return nil
}

func (r *diskRamp) Give(n int64) error {
	if err := r.wait(); err != nil {
		return err
	}
	r.held -= min(n, r.held)
	if err := r.file.Truncate(r.held); err != nil {
		return fmt.Errorf("empty filesystem: %w", err)
	}
	return r.sync()
}

func (r *diskRamp) Close() error {
	return errors.Join(r.wait(), r.file.Close(), os.Remove(r.file.Name()))
}

// Crossing is when a limit was crossed: not before Above, when the kernel was
// asked for the last time and there still was enough, and not after Below, when
// there was not.
type Crossing struct{ Above, Below time.Time }

// ErrForeign means that another process crossed the limit, at an unknown time.
var ErrForeign = errors.New("crossed by another process")

// maxSteps bounds a crossing that does not come about.
const maxSteps = 1_000_000

// Cross takes steps until less is available than the limit.
func Cross(r Ramp, limit, step int64) (c Crossing, err error) {
	for range maxSteps {
		asked := time.Now()
		available, err := r.Available()
		switch {
		case err != nil:
			return c, err
		case available < limit && c.Above.IsZero():
			return c, ErrForeign
		case available < limit:
			c.Below = time.Now()
			return c, nil
		}
		c.Above = asked
		if err := r.Take(step); err != nil {
			return c, err
		}
	}
	return c, fmt.Errorf("the limit %d is not crossed after %d steps of %d", limit, maxSteps, step)
}

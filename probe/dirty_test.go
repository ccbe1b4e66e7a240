package probe_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

	"github.com/nodeprobe/nodeprobe/probe/cgroup"

	"golang.org/x/sys/unix"
)

// dirtyCgroups are memory cgroups that have a page each of one file, whose second
// half belongs to the last of them. Who maps a page changes a counter of its cgroup:
// the kernel notes that, and adds it up for the parents when somebody asks.
type dirtyCgroups struct {
	parent string
	number int
	pages  *os.File
}

// newDirtyCgroups makes so many below one that the test ends with, or skips the test.
func newDirtyCgroups(tb testing.TB, number int) *dirtyCgroups {
	tb.Helper()
	root, version := cgroup.Memory("/sys/fs/cgroup")
	if version == cgroup.None {
		tb.Skip("no memory controller")
	}
	d := &dirtyCgroups{filepath.Join(root, fmt.Sprintf("nodeprobe-bench-%d", os.Getpid())), number, nil}
	if err := os.Mkdir(d.parent, 0o755); err != nil {
		tb.Skipf("make cgroup: %v", err)
	}
	tb.Cleanup(func() { d.remove(tb) })
	if version == cgroup.V2 {
		if err := os.WriteFile(filepath.Join(d.parent, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
			tb.Skipf("hand the memory controller on: %v", err)
		}
	}
	fd, err := unix.MemfdCreate("nodeprobe-bench", unix.MFD_CLOEXEC)
	if err != nil {
		tb.Fatal(err)
	}
	d.pages = os.NewFile(uintptr(fd), "pages")
	if err := d.pages.Truncate(int64(2 * number * os.Getpagesize())); err != nil {
		tb.Fatal(err)
	}
	for i := range number {
		if err := os.Mkdir(d.child(i), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	writer := exec.Command("/proc/self/exe", "-test.run=^TestPageWriter$")
	writer.Env = append(os.Environ(), "NODEPROBE_PAGES="+d.parent+":"+strconv.Itoa(number))
	writer.ExtraFiles = []*os.File{d.pages}
	if out, err := writer.CombinedOutput(); err != nil {
		tb.Fatalf("write a page in each cgroup: %v: %s", err, out)
	}
	return d
}

func (d *dirtyCgroups) child(i int) string { return filepath.Join(d.parent, strconv.Itoa(i)) }

// TestPageWriter is not a test but the process that goes through the cgroups and
// writes a page in each, which is charged to it.
func TestPageWriter(t *testing.T) {
	parent, count, found := strings.Cut(os.Getenv("NODEPROBE_PAGES"), ":")
	if !found {
		return
	}
	number, err := strconv.Atoi(count)
	probetest.Must(t, err)
	d := &dirtyCgroups{parent, number, os.NewFile(3, "pages")}
	for i := range 2 * number {
		if i < number {
			probetest.Must(t, os.WriteFile(filepath.Join(d.child(i), "cgroup.procs"), []byte("0"), 0))
		}
		if _, err := d.pages.WriteAt([]byte{1}, int64(i*os.Getpagesize())); err != nil {
			t.Fatal(err)
		}
	}
}

// change changes a counter of each cgroup, or one of the last as often.
func (d *dirtyCgroups) change(tb testing.TB, each bool) {
	tb.Helper()
	var from int64
	if !each {
		from = int64(d.number * os.Getpagesize())
	}
	m, err := unix.Mmap(int(d.pages.Fd()), from, d.number*os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		tb.Fatal(err)
	}
	if err := unix.Munmap(m); err != nil {
		tb.Fatal(err)
	}
}

func (d *dirtyCgroups) remove(tb testing.TB) {
	if d.pages != nil {
		d.pages.Close()
	}
	remove := func(dir string) {
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			err := os.Remove(dir)
			if err == nil || errors.Is(err, os.ErrNotExist) {
				return
			}
			if time.Now().After(deadline) {
				tb.Errorf("remove cgroup: %v", err)
				return
			}
		}
	}
	for i := range d.number {
		remove(d.child(i))
	}
	remove(d.parent)
}

// reportDirty shows what a sample costs that comes after each of so many cgroups has
// counted something, beside one after a single cgroup has counted as much, and what
// memory.stat of the root costs there. All are single reads, with cold caches.
func reportDirty(t *testing.T, cgroups int) {
	const rounds = 51
	d := newDirtyCgroups(t, cgroups)
	root, _ := cgroup.Memory("/sys/fs/cgroup")
	stat, err := unix.Open(filepath.Join(root, "memory.stat"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	probetest.Must(t, err)
	defer unix.Close(stat)
	sampler, evaluator, floor := newSampler(t), newEvaluator(t), newFloor(t)
	var buf [16 << 10]byte
	readStat := func() { unix.Pread(stat, buf[:], 0) }
	sample := func() { evaluator.Observe(sampler.Sample()) }
	contenders := [...]struct {
		each bool
		read func()
	}{
		{true, sample},
		{false, sample},
		{true, floor.read},
		{true, readStat},
		{false, readStat},
	}
	var us [len(contenders)][]float64
	for range rounds {
		for i, c := range contenders {
			readStat() // so that all begin alike
			d.change(t, c.each)
			start := time.Now()
			c.read()
			us[i] = append(us[i], float64(time.Since(start).Nanoseconds())/1e3)
		}
	}
	each, one := median(us[0]), median(us[1])
	fmt.Printf("RESULT sample_observe_dirty_ratio=%.2f x budget=1.3 peer=one_cgroup:%.1fus\n", each/one, one)
	fmt.Printf("RESULT sample_observe_dirty=%.1f us peer=floor:%.1fus\n", each, median(us[2]))
	fmt.Printf("RESULT memory_stat_dirty=%.1f us peer=one_cgroup:%.1fus\n", median(us[3]), median(us[4]))
}

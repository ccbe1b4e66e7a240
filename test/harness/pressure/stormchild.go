package pressure

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// order is what a child of a storm is told on its stdin, a line of JSON for each, and
// answer what it says when it has done that.
type order struct {
	Do string
	// Available is what MemAvailable is to be, Limit what is to be crossed, or not yet;
	// how long it may last is Lasts.
	Available, Limit int64
	Lasts            time.Duration
}

const (
	doHold  = "hold"
	doRead  = "read"
	doCross = "cross"
	doRest  = "rest"
)

type answer struct {
	Crossing
	Error string
}

// servant is a child that follows orders.
type servant interface {
	follow(order) (Crossing, error)
}

func (r role) servant() (servant, error) {
	if r.Hog || r.Burst > 0 {
		// Its group is it alone. The readers keep all processors busy.
		if err := unix.Setpriority(unix.PRIO_PGRP, 0, -20); err != nil {
			return nil, os.NewSyscallError("setpriority", err)
		}
	}
	switch {
	case r.Hog:
		return newHog()
	case r.Read != "":
		return newReader(r.Read, r.Runs)
	case r.Burst > 0:
		return newBurst(r.Burst)
	}
	return nil, nil
}

// serve follows orders until stdin ends.
func serve(s servant) error {
	orders, answers := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var a answer
		var err error
		if a.Crossing, err = s.follow(o); err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

// ask gives an order and waits until it has been followed.
func (c *child) ask(o order) (Crossing, error) {
	if err := json.NewEncoder(c.stdin).Encode(o); err != nil {
		return Crossing{}, fmt.Errorf("storm: %s: %w", o.Do, err)
	}
	var a answer
	line, err := c.stdout.ReadBytes('\n')
	if err == nil && json.Unmarshal(line, &a) != nil {
		a.Error = string(bytes.TrimSpace(line)) // why it ends
	}
	if a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		return Crossing{}, fmt.Errorf("storm: %s: %w", o.Do, err)
	}
	return a.Crossing, nil
}

// hog locks memory, in a storm so much that tasks wait for memory for a share of the
// time. How little must be available for that depends on the machine, and on what
// runs there.
type hog struct {
	files *memoryFiles
	// Kept open: whoever opens a file in a storm waits for memory.
	psi, meminfo *os.File

	mu        sync.Mutex
	chunks    [][]byte
	available int64 // what to leave; 0: nothing is held yet
	storm     bool
	level     int64       // what it left in the last one
	above     int64       // what memory.available is to stay above in a storm
	end       *time.Timer // of the storm at the latest
	stalled   int64       // us in which a task waited
	ticks     int
}

const (
	hogStep     = 4 << 20
	hogStride   = 64 << 20 // while much is to be had
	hogInterval = 50 * time.Millisecond
	// steering is how often it looks at what it has done. The kernel adds up PSI's totals
	// every two seconds.
	steering = 44 * hogInterval
	// deepest is how little a storm leaves by itself.
	deepest = 245 << 20
)

func newHog() (*hog, error) {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0); err != nil {
		return nil, err
	}
	files, err := openMemory("")
	if err != nil {
		return nil, err
	}
	psi, err := os.Open("/proc/pressure/memory")
	if err != nil {
		return nil, err
	}
	meminfo, err := os.Open("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	h := &hog{files: files, psi: psi, meminfo: meminfo}
	h.end = time.AfterFunc(time.Hour, func() { fmt.Println("the storm lasts too long"); os.Exit(1) })
	h.end.Stop()
	go func() {
		for range time.Tick(hogInterval) {
			if err := h.tick(); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		}
	}()
	return h, nil
}

func (h *hog) follow(o order) (c Crossing, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o.Do == doCross {
		h.above = 0
		if c, err = h.cross(o.Limit); err == nil {
			h.available, err = h.left() // the storm goes on from there
		}
		return c, err
	}
	h.available, h.storm, h.above, h.ticks = o.Available, o.Lasts > 0, o.Limit, 1
	if h.end.Stop(); h.storm {
		if h.level > 0 && o.Limit == 0 {
			h.available = h.level + 4*hogStep
		}
		h.end.Reset(o.Lasts)
	}
	return c, h.keep(math.MaxInt)
}

// maxDeeper is how much it may take to cross a limit.
const maxDeeper = 160 << 20

// cross is Cross with steps so slow that the kernel finds the memory for each.
func (h *hog) cross(limit int64) (c Crossing, err error) {
	for range maxDeeper / hogStep {
		now, err := h.Available()
		if err != nil {
			return c, err
		}
		if now < limit {
			return c, ErrForeign
		}
		c.Above = time.Now()
		if err := h.Take(hogStep); err != nil {
			return c, err
		}
		now, err = h.Available()
		if c.Below = time.Now(); err != nil || now < limit {
			return c, err
		}
		time.Sleep(hogInterval)
	}
	return c, fmt.Errorf("memory.available does not fall below %d MiB", limit>>20)
}

// tick keeps what is held as it is to be, with steps too small to be a storm themselves.
func (h *hog) tick() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ticks++; h.storm && h.ticks%int(steering/hogInterval) == 0 {
		if err := h.steer(); err != nil {
			return err
		}
	}
	return h.keep(2)
}

// steer has the storm be neither a breeze nor the end of all.
func (h *hog) steer() error {
	var avg [3]float64
	var total int64
	text, err := readAgain(h.psi, h.files.buf)
	if err != nil {
		return err
	}
	if _, err := fmt.Sscanf(string(text), "some avg10=%f avg60=%f avg300=%f total=%d", &avg[0], &avg[1], &avg[2], &total); err != nil {
		return fmt.Errorf("read PSI: %w", err)
	}
	now, err := h.Available()
	waited := float64(total-h.stalled) / float64(steering.Microseconds())
	switch h.stalled = total; {
	case waited > 0.7: // soon something would be killed
		h.available += 12 * hogStep
	case waited > 0.4:
		h.available += 4 * hogStep
	case h.available <= deepest || now < h.above+2*hogStep:
	case waited < 0.05:
		h.available -= 3 * hogStep
	case waited < 0.2:
		h.available -= hogStep
	}
	h.level = h.available
	return err
}

// Available, Take, Give and Close are a Ramp's.
func (h *hog) Available() (int64, error) { return h.files.available() }

func (h *hog) Take(n int64) error {
	if available, err := h.left(); err != nil || available-n < leastAvailable {
		return errors.Join(fmt.Errorf("only %d MiB are available", available>>20), err)
	}
	chunk, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	if n == hogStride {
		_ = unix.Madvise(chunk, unix.MADV_HUGEPAGE) // it is faster, where there are any
	}
	h.chunks = append(h.chunks, chunk)
	return os.NewSyscallError("mlock", unix.Mlock(chunk))
}

func (h *hog) Give(int64) error {
	last := len(h.chunks) - 1
	err := unix.Munmap(h.chunks[last])
	h.chunks = h.chunks[:last]
	return os.NewSyscallError("munmap", err)
}

func (h *hog) Close() error { return nil }

// left reads MemAvailable, with as little garbage as may be.
func (h *hog) left() (int64, error) {
	text, err := readAgain(h.meminfo, h.files.buf)
	if err != nil {
		return 0, err
	}
	_, rest, _ := bytes.Cut(text, []byte("MemAvailable:"))
	digits, _, _ := bytes.Cut(bytes.TrimLeft(rest, " "), []byte(" "))
	n, err := strconv.ParseInt(string(digits), 10, 64)
	return n << 10, err
}

// keep brings what is available to what it is to be, or so many steps nearer.
func (h *hog) keep(steps int) error {
	for ; h.available > 0 && steps > 0; steps-- {
		available, err := h.left()
		if err != nil {
			return err
		}
		surplus := available - h.available
		switch {
		case surplus >= 1<<30:
			err = h.Take(hogStride)
		case surplus >= 2*hogStep:
			err = h.Take(hogStep)
		case surplus < -4*hogStep && len(h.chunks) > 0:
			err = h.Give(0)
		default:
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reader goes through a file over and over. A runner does so with a part of it as what
// runs a large program does: the kernel holds on to pages that are executed, and so they
// contend with everybody's text, where data that is read once would have to give way.
type reader struct {
	run  sync.Mutex // held while it rests
	rest bool
}

func newReader(name string, runs int64) (*reader, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	var text []byte
	if runs > 0 {
		if text, err = unix.Mmap(int(file.Fd()), 0, int(runs), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_SHARED); err != nil {
			return nil, os.NewSyscallError("mmap", err)
		}
	}
	r := &reader{rest: true}
	r.run.Lock()
	go func() {
		buf := make([]byte, 128<<10)
		for at := int64(0); ; at += int64(len(buf)) {
			r.run.Lock()
			if runs == 0 {
				if _, err := file.ReadAt(buf, at); err != nil {
					at = 0
				}
			} else {
				for i := range len(buf) / os.Getpagesize() {
					buf[0] += text[at%runs+int64(i*os.Getpagesize())]
				}
			}
			r.run.Unlock()
		}
	}()
	return r, nil
}

func (r *reader) follow(o order) (c Crossing, err error) {
	switch rest := o.Do == doRest; {
	case rest && !r.rest:
		r.run.Lock()
	case !rest && r.rest:
		r.run.Unlock()
	}
	r.rest = o.Do == doRest
	return c, nil
}

// burst starts tasks. It is not locked: each would take all of its stack.
type burst struct {
	Ramp
	tasks int64
}

func newBurst(tasks int64) (*burst, error) {
	debug.SetGCPercent(-1)
	ramp, err := TaskRamp()
	if err != nil {
		return nil, err
	}
	b := &burst{ramp, tasks}
	// What Go's runtime takes for it is there from then on.
	return b, errors.Join(b.Take(tasks), b.Give(tasks))
}

func (b *burst) follow(o order) (Crossing, error) {
	if o.Do == doRest {
		return Crossing{}, b.Give(b.tasks)
	}
	before, err := b.Available()
	if err != nil {
		return Crossing{}, err
	}
	c, err := Cross(b, o.Limit, 1)
	if err != nil {
		return c, err
	}
	now, err := b.Available()
	return c, errors.Join(err, b.Take(max(0, b.tasks-(before-now))))
}

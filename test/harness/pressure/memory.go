package pressure

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// runtimeRoom is what a child needs besides what it holds.
const runtimeRoom = 64 << 20

// NoMoreMemory makes a memory cgroup with a limit in bytes, for others to be put into;
// they must have ended before it is released. It needs root.
func NoMoreMemory(limit int64) (*Pressure, error) { return inCgroup("memory", limit, nil) }

// OOMKill has the kernel kill a process for lack of memory: a child that takes
// more than its cgroup may have. It returns the child's process ID once that is
// dead. It needs root.
func OOMKill() (pid int, err error) { return OOMKillNamed("") }

// OOMKillNamed is OOMKill of a process that has given itself a name, of up to 15
// bytes.
func OOMKillNamed(name string) (pid int, err error) {
	p, err := inCgroup("memory", runtimeRoom, []role{{Memory: 4 * runtimeRoom, Name: name}})
	if err == nil {
		return 0, errors.Join(errors.New("have a process killed: it got all the memory it wanted"), p.Release())
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL { //nolint:forcetypeassert // it is always one on Linux
		return 0, fmt.Errorf("have a process killed: %w", err)
	}
	return exit.Pid(), nil
}

// holdMemory returns when every page is there. The mapping lasts as long as the
// process.
func holdMemory(size int64) error {
	memory, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("hold memory: %w", err)
	}
	for i := 0; i < len(memory); i += unix.Getpagesize() {
		memory[i] = 1
	}
	return nil
}

// systemMemory returns MemTotal and MemAvailable of /proc/meminfo in bytes.
func systemMemory() (total, available int64, err error) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0, fmt.Errorf("read available memory: %w", err)
	}
	return parseMemory(data)
}

func parseMemory(data []byte) (total, available int64, err error) {
	available = -1 // there may be none
	for line := range bytes.Lines(data) {
		// Lines of other keys do not match, and leave both as they are.
		_, _ = fmt.Sscanf(string(line), "MemTotal: %d kB", &total)
		_, _ = fmt.Sscanf(string(line), "MemAvailable: %d kB", &available)
	}
	if total == 0 || available < 0 {
		return 0, 0, errors.New("read available memory: /proc/meminfo lacks it")
	}
	return total << 10, available << 10, nil
}

// AvailableMemory reads the kubelet's memory.available from the kernel: all that
// the root memory cgroup does not use, or uses for file cache that has not been
// touched lately.
func AvailableMemory() (int64, error) {
	m, err := openMemory("")
	if err != nil {
		return 0, err
	}
	defer m.close()
	return m.available()
}

// AvailableTasks reads the kubelet's pid.available from the kernel.
func AvailableTasks() (int64, error) {
	limit, used, err := systemTasks()
	return int64(limit - used), err
}

// memoryFiles are the files that say how much memory is available. They are kept
// open: who clocks a crossing reads them after each step.
type memoryFiles struct {
	total int64
	// With cgroup v1, usage says what stat's keys of v2 add up to.
	usage, stat *os.File
	buf         []byte

	inactive int64
	read     time.Time // of inactive, with v1
}

// inactiveAge is how old the figure for inactive file cache may be. To read it
// while memory is being used takes the kernel ten times as long as the rest, and
// is not what changes then.
const inactiveAge = 10 * time.Millisecond

// openMemory opens the files of a cgroup, by its path below the root.
func openMemory(cgroup string) (_ *memoryFiles, err error) {
	m := &memoryFiles{buf: make([]byte, 16<<10)}
	if m.total, _, err = systemMemory(); err != nil {
		return nil, err
	}
	v1, v2 := "/sys/fs/cgroup/memory"+cgroup+"/memory", "/sys/fs/cgroup"+cgroup+"/memory"
	dir := v1
	if m.usage, err = os.Open(v1 + ".usage_in_bytes"); errors.Is(err, os.ErrNotExist) {
		dir, err = v2, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read available memory: %w", err)
	}
	if m.stat, err = os.Open(dir + ".stat"); err != nil {
		m.close()
		return nil, fmt.Errorf("read available memory: %w", err)
	}
	return m, nil
}

func (m *memoryFiles) close() {
	// A nil file gives an error and nothing else.
	_ = m.usage.Close()
	_ = m.stat.Close()
}

func (m *memoryFiles) available() (int64, error) {
	if m.usage == nil {
		stat, err := readAgain(m.stat, m.buf)
		anon, anonErr := number(stat, "anon")
		file, fileErr := number(stat, "file")
		inactive, inactiveErr := number(stat, "inactive_file")
		return m.total - (anon + file - inactive), errors.Join(err, anonErr, fileErr, inactiveErr)
	}
	if time.Since(m.read) > inactiveAge {
		stat, err := readAgain(m.stat, m.buf)
		if err != nil {
			return 0, err
		}
		if m.inactive, err = number(stat, "total_inactive_file"); err != nil {
			return 0, err
		}
		m.read = time.Now()
	}
	usage, err := readAgain(m.usage, m.buf)
	used, usedErr := number(usage, "")
	return m.total - (used - m.inactive), errors.Join(err, usedErr)
}

// readAgain reads a file in /proc or /sys from its beginning.
func readAgain(file *os.File, buf []byte) ([]byte, error) {
	n, err := file.ReadAt(buf, 0)
	if n == 0 {
		return nil, fmt.Errorf("read %s: %w", file.Name(), err)
	}
	return buf[:n], nil // Less than the buffer holds is io.EOF.
}

// number returns the number after a key at the beginning of a line, or without
// a key the first number.
func number(text []byte, key string) (int64, error) {
	if key != "" {
		key += " "
	}
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte(key)); ok {
			return strconv.ParseInt(string(bytes.TrimSpace(rest)), 10, 64)
		}
	}
	return 0, fmt.Errorf("no line begins with %q", key)
}

// NoNewTasks makes a cgroup in which no task can start another. It is for others
// to be put into; they must have left, or ended, before it is released.
func NoNewTasks() (*Pressure, error) { return inCgroup("pids", 0, nil) }

// Add puts a process into the cgroup, with all its threads.
func (p *Pressure) Add(pid int) error {
	if err := os.WriteFile(filepath.Join(p.Cgroup, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		return fmt.Errorf("add to cgroup: %w", err)
	}
	return nil
}

// systemTasks returns how many tasks the kernel allows and how many exist.
func systemTasks() (limit, used int, err error) {
	var pidMax, threadsMax, runnable int
	for file, scan := range map[string]func(string) error{
		"/proc/sys/kernel/pid_max":     func(s string) error { _, err := fmt.Sscan(s, &pidMax); return err },
		"/proc/sys/kernel/threads-max": func(s string) error { _, err := fmt.Sscan(s, &threadsMax); return err },
		// 0.20 0.18 0.12 1/80 11206
		"/proc/loadavg": func(s string) error {
			var load [3]float64
			_, err := fmt.Sscanf(s, "%f %f %f %d/%d", &load[0], &load[1], &load[2], &runnable, &used)
			return err
		},
	} {
		data, err := os.ReadFile(file)
		if err == nil {
			err = scan(string(data))
		}
		if err != nil {
			return 0, 0, fmt.Errorf("read %s: %w", file, err)
		}
	}
	return min(pidMax, threadsMax), used, nil
}

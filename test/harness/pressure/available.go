package pressure

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

// AvailableMemory reads the kubelet's memory.available from the kernel: all that
// the root memory cgroup does not use, or uses for file cache that has not been
// touched lately.
func AvailableMemory() (int64, error) {
	m, err := openMemory()
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

func openMemory() (_ *memoryFiles, err error) {
	m := &memoryFiles{buf: make([]byte, 16<<10)}
	if m.total, _, err = systemMemory(); err != nil {
		return nil, err
	}
	const v1, v2 = "/sys/fs/cgroup/memory/memory", "/sys/fs/cgroup/memory"
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

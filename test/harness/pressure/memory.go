package pressure

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// runtimeRoom is what a child needs besides what it holds.
const runtimeRoom = 64 << 20

// Memory holds the given number of MiB of anonymous memory, in a child process
// in a memory cgroup of about that size. It refuses what would leave the
// machine with less than a tenth of its memory. It needs root.
func Memory(mebibytes int) (*Pressure, error) {
	size := int64(mebibytes) << 20
	total, available, err := systemMemory()
	if err != nil {
		return nil, err
	}
	if available-size < total/10 {
		return nil, fmt.Errorf("hold %d MiB of memory: only %d of %d MiB are available", mebibytes, available>>20, total>>20)
	}
	return inCgroup("memory", size+runtimeRoom, []role{{Memory: size}})
}

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
	for line := range bytes.Lines(data) {
		// Lines of other keys do not match, and leave both as they are.
		_, _ = fmt.Sscanf(string(line), "MemTotal: %d kB", &total)
		_, _ = fmt.Sscanf(string(line), "MemAvailable: %d kB", &available)
	}
	if total == 0 || available == 0 {
		return 0, 0, errors.New("read available memory: /proc/meminfo lacks it")
	}
	return total << 10, available << 10, nil
}

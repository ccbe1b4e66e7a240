package pressure

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
)

const (
	// tasksPerChild keeps below the number of goroutines that the race detector
	// can follow (8128).
	tasksPerChild = 4000
	// runtimeTasks is how many threads a child may have besides.
	runtimeTasks = 32
)

// Tasks holds the given number of sleeping tasks (threads; what the kernel's
// PID limits count), in child processes in a pids cgroup of about that size. It
// refuses what would leave the machine with less than 1000 process IDs. It
// needs root.
func Tasks(n int) (*Pressure, error) {
	limit, used, err := systemTasks()
	if err != nil {
		return nil, err
	}
	if limit-used-n < 1000 {
		return nil, fmt.Errorf("hold %d tasks: %d of %d are used", n, used, limit)
	}
	var roles []role
	for left := n; left > 0; left -= tasksPerChild {
		roles = append(roles, role{Tasks: min(left, tasksPerChild)})
	}
	return inCgroup("pids", int64(n+runtimeTasks*len(roles)), roles)
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

// holdTasks returns when that many threads exist. They last as long as the
// process.
func holdTasks(n int) {
	debug.SetMaxThreads(n + runtimeTasks)
	started := make(chan struct{})
	for range n - 1 { // This one is a task too.
		go func() {
			// The goroutine never unlocks, so the thread can serve no other.
			runtime.LockOSThread()
			started <- struct{}{}
			select {}
		}()
	}
	for range n - 1 {
		<-started
	}
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

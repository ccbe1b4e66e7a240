package probe

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nodeprobe/nodeprobe/probe/hotfile"
)

// taskReader reads how many tasks exist, and how many may exist.
type taskReader struct {
	procfs                      string
	loadavg, pidMax, threadsMax hotfile.File
	foreign                     error // why pid_max is not the node's
	nested                      bool  // the node is a container, so nothing here can read it
}

func newTaskReader(procfs string) *taskReader {
	return &taskReader{
		procfs:     procfs,
		loadavg:    hotfile.New(filepath.Join(procfs, "loadavg")),
		pidMax:     hotfile.New(filepath.Join(procfs, "sys/kernel/pid_max")),
		threadsMax: hotfile.New(filepath.Join(procfs, "sys/kernel/threads-max")),
	}
}

// ErrPIDNamespace means that this process is in a PID namespace of its own, where the
// node's pid_max cannot be read: since Linux 6.14 the kernel returns that of the
// reader's namespace, whichever /proc is read. The other figures are the node's.
var ErrPIDNamespace = errors.New("not in the node's PID namespace, and pid_max is that of the reader's")

// nestedNode is ErrPIDNamespace on a node that is a container itself, as kind's are. As
// nothing on such a node can read pid_max, it is errors.ErrUnsupported, too.
type nestedNode struct{}

func (nestedNode) Error() string {
	return ErrPIDNamespace.Error() + "; nor is process 1: the node is a container"
}

func (nestedNode) Is(target error) bool {
	return target == ErrPIDNamespace || target == errors.ErrUnsupported
}

// initialPIDNamespace is PROC_PID_INIT_INO, the inode number of the first one.
const initialPIDNamespace = "pid:[4026531836]"

// discover finds out whose pid_max it is. Before Linux 6.14 there is only one.
func (r *taskReader) discover() {
	release, _ := kernelRelease()
	r.foreign = foreignPIDMax(r.procfs, release)
	r.nested = errors.Is(r.foreign, errors.ErrUnsupported)
}

// foreignPIDMax returns an error that wraps ErrPIDNamespace if pid_max is not the
// node's. It returns nil if that cannot be found out.
func foreignPIDMax(procfs, release string) error {
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n == 2 && (major < 6 || major == 6 && minor < 14) {
		return nil
	}
	ns, err := os.Readlink(filepath.Join(procfs, "self/ns/pid"))
	if err != nil || ns == initialPIDNamespace {
		return nil
	}
	err = ErrPIDNamespace
	if first, unread := os.Readlink(filepath.Join(procfs, "1/ns/pid")); unread == nil && first == ns {
		err = nestedNode{}
	}
	return readError(filepath.Join(procfs, "sys/kernel/pid_max"), err)
}

// read fills in the task part of s.
func (r *taskReader) read(s *Snapshot) {
	running, total, err := r.readLoadavg()
	limit, limitErr := r.readLimit()
	s.Errors[SourceLoadavg], s.Errors[SourceTaskLimit] = err, limitErr
	if r.nested {
		s.Errors[SourceTaskLimit] = nil // there is none to be read
	}
	if err != nil || limit == 0 {
		s.Tasks = Tasks{}
		if err == nil {
			err = limitErr
		} else if limitErr != nil {
			err = errors.Join(err, limitErr)
		}
		s.Signals[PIDAvailable] = Observation{Err: err}
		return
	}
	s.Tasks = Tasks{Running: running, Total: total, Max: limit, OK: true}
	s.Signals[PIDAvailable] = observe(limit-total, limit)
}

// readLimit returns min(pid_max, threads-max). One of the two is enough, as for the
// kubelet: a limit other than 0 is valid even with an error, which is about the other.
func (r *taskReader) readLimit() (int64, error) {
	if r.foreign != nil { // and threads-max may allow many times as much
		return 0, r.foreign
	}
	pids, err := readPositive(&r.pidMax)
	threads, threadsErr := readPositive(&r.threadsMax)
	switch {
	case err == nil && threadsErr == nil:
		return min(pids, threads), nil
	case err == nil || threadsErr == nil:
		return max(pids, threads), errors.Join(err, threadsErr)
	default:
		return 0, errors.Join(err, threadsErr)
	}
}

// readPositive reads a number that is never 0.
func readPositive(f *hotfile.File) (int64, error) {
	n, err := f.Number()
	if err == nil && n == 0 {
		err = readError(f.Path, hotfile.ErrZero)
	}
	return n, err
}

var errLoadavg = errors.New(`4th field is not "running/total"`)

func (r *taskReader) readLoadavg() (running, total int64, err error) {
	b, err := r.loadavg.Read()
	if err != nil {
		return 0, 0, err
	}
	running, total, err = parseLoadavg(b)
	if err != nil {
		return 0, 0, readError(r.loadavg.Path, err)
	}
	return running, total, nil
}

// parseLoadavg reads the 4th field of a line such as
//
//	0.20 0.18 0.12 1/80 11206
func parseLoadavg(b []byte) (running, total int64, err error) {
	if len(b) == 0 {
		return 0, 0, hotfile.ErrEmpty
	}
	line, _, _ := hotfile.NextLine(b)
	rest := line
	var field []byte
	for range 4 {
		field, rest = hotfile.NextField(rest)
	}
	// Without the 5th field the 4th may have been cut.
	last, _ := hotfile.NextField(rest)
	r, t, found := bytes.Cut(field, []byte{'/'})
	if !found || len(last) == 0 {
		return 0, 0, hotfile.LineError(line, errLoadavg)
	}
	if running, err = hotfile.ParseUint(r); err == nil {
		total, err = hotfile.ParseUint(t)
	}
	if err == nil && total == 0 {
		err = hotfile.ErrZero // the reader is a task itself
	}
	if err != nil {
		return 0, 0, hotfile.LineError(line, err)
	}
	return running, total, nil
}

func (r *taskReader) close() {
	r.loadavg.Close()
	r.pidMax.Close()
	r.threadsMax.Close()
}

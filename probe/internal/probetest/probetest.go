// Package probetest has what the tests of several packages below probe need from
// the kernel: mount namespaces, memory cgroups, filesystems that hang.
package probetest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Lacking skips the test for want of a right or a tool, which CI does not allow.
func Lacking(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("NODEPROBE_REQUIRE") == "1" {
		t.Fatalf("NODEPROBE_REQUIRE=1, but "+format, args...)
	}
	t.Skipf(format, args...)
}

// Must ends the test if err is not nil.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// CheckError fails the test unless err is nil and no error is wanted, or it wraps
// want.
func CheckError(t testing.TB, err, want error) {
	t.Helper()
	if (err == nil) != (want == nil) || !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}

// ErrText returns the text of err, "" if it is nil.
func ErrText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// InMountNamespace calls f on a thread that has a mount namespace of its own,
// where it may mount what it likes; procfs has this namespace's table as that of
// process 1. f must not start goroutines that look at mounts. The namespace, and
// what is mounted, end with the thread.
func InMountNamespace(t *testing.T, f func(procfs string) error) {
	t.Helper()
	procfs := t.TempDir()
	Must(t, os.Mkdir(filepath.Join(procfs, "1"), 0o700))
	refused := errors.New("make mount namespace")
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: nobody else gets the thread
		var err error
		defer func() { done <- err }()
		if err = unix.Unshare(unix.CLONE_NEWNS); err != nil {
			err = fmt.Errorf("%w: %w", refused, err)
			return
		}
		if err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return
		}
		table := fmt.Sprintf("/proc/%d/task/%d/mountinfo", os.Getpid(), unix.Gettid())
		if err = os.Symlink(table, filepath.Join(procfs, "1/mountinfo")); err != nil {
			return
		}
		err = f(procfs)
	}()
	if err := <-done; errors.Is(err, refused) {
		Lacking(t, "%v", err)
	} else if err != nil {
		t.Error(err)
	}
}

// Root is a directory that stands for the root directory of a node.
type Root struct{ Dir string }

// NewRoot makes an empty Root, which ends with the test.
func NewRoot(t testing.TB) Root { return Root{t.TempDir()} }

// Path returns where a path of the node is.
func (r Root) Path(name string) string { return filepath.Join(r.Dir, name) }

// Write makes a file and its directory, or changes a file in place, so that whoever
// has it open sees the change, as with a file of the kernel's.
func (r Root) Write(t testing.TB, name, text string) {
	t.Helper()
	Must(t, os.MkdirAll(filepath.Dir(r.Path(name)), 0o755))
	Must(t, os.WriteFile(r.Path(name), []byte(text), 0o644))
}

// Link makes a symbolic link, and its directory.
func (r Root) Link(t testing.TB, target, name string) {
	t.Helper()
	r.Remove(t, name)
	Must(t, os.MkdirAll(filepath.Dir(r.Path(name)), 0o755))
	Must(t, os.Symlink(target, r.Path(name)))
}

// Remove removes a file or a directory, with all that is in it.
func (r Root) Remove(t testing.TB, name string) {
	t.Helper()
	Must(t, os.RemoveAll(r.Path(name)))
}

package hotfile

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

	"golang.org/x/sys/unix"
)

func open(t *testing.T, path string) *File {
	t.Helper()
	f := New(path)
	t.Cleanup(f.Close)
	return &f
}

func TestFileReadsWholeFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f := open(t, path)
	// Also shrinking: what is left in the buffer from before must not show.
	for _, n := range []int{0, 1, 4031, 4032, 4033, 4095, 4096, 4097, 8191, 8192, 8193, 100_000, maxSize - 1, 5000, 10, 0} {
		text := strings.Repeat("0123456789abcde\n", n/16+1)[:n]
		probetest.Must(t, os.WriteFile(path, []byte(text), 0o644))
		if got, err := f.Read(); err != nil || string(got) != text {
			t.Errorf("%d bytes: read %d, %v", n, len(got), err)
		}
	}
}

// The kernel gives a file of many records out in pieces that are shorter than
// what was asked for, as /proc/vmstat on a kernel with many counters. Here, the
// records are the mappings of this process: many anonymous ones, each a line of
// less than 64 bytes.
func TestFileReadsPieces(t *testing.T) {
	const pages = 1000
	size := os.Getpagesize()
	region, err := unix.Mmap(-1, 0, pages*size, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	probetest.Must(t, err)
	defer unix.Munmap(region)
	for i := 0; i < pages; i += 2 { // neighbours that differ are not merged
		probetest.Must(t, unix.Mprotect(region[i*size:(i+1)*size], unix.PROT_NONE))
	}
	f := open(t, "/proc/self/maps")
	for range 3 { // also with the buffer that has grown
		got, err := f.Read()
		probetest.Must(t, err)
		if n := bytes.Count(got, []byte{'\n'}); n < pages {
			t.Errorf("%d lines in %d bytes, want at least %d", n, len(got), pages)
		}
	}
}

func TestFileErrors(t *testing.T) {
	dir := t.TempDir()
	long := filepath.Join(dir, "long")
	probetest.Must(t, os.WriteFile(long, make([]byte, 4<<20), 0o644))
	secret := filepath.Join(dir, "secret")
	probetest.Must(t, os.WriteFile(secret, nil, 0))
	for _, test := range []struct {
		path string
		want error
	}{
		{filepath.Join(dir, "absent"), fs.ErrNotExist},
		{filepath.Join(long, "file"), unix.ENOTDIR},
		{dir, unix.EISDIR},
		{long, errTooLong},
		{"/proc/self/mem", unix.EIO}, // opens, and fails to read, as pressure does where it is switched off
		{secret, fs.ErrPermission},
	} {
		if test.path == secret && os.Geteuid() == 0 {
			continue // root reads it
		}
		f := open(t, test.path)
		_, err := f.Read()
		probetest.CheckError(t, err, test.want)
		var named *fs.PathError
		if !errors.As(err, &named) || named.Path != test.path {
			t.Errorf("%s: %v does not name the file", test.path, err)
		}
		if f.fd != 0 {
			t.Errorf("%s: still open after %v", test.path, err)
		}
	}
	if _, err := new(File).Read(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no path: %v", err)
	}
}

// A buffer for a file that is far too long must not stay for the daemon's life.
func TestFileDropsLongBuffer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	probetest.Must(t, os.WriteFile(path, make([]byte, maxSize), 0o644))
	f := open(t, path)
	f.Read()
	if len(f.buf) > 0 {
		t.Errorf("keeps %d bytes", len(f.buf))
	}
	probetest.Must(t, os.WriteFile(path, []byte("short\n"), 0o644))
	if got, err := f.Read(); string(got) != "short\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

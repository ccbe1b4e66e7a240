// Package hotfile reads the kernel's counter files at every sample without
// allocating: File keeps one open, and the functions beside it scan what it holds. Statfs
// asks for a filesystem's.
package hotfile

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// maxSize bounds what is read of one file. The longest hot file of a real
// kernel, /proc/vmstat, has about 5 KiB.
const maxSize = 1 << 20

var errTooLong = errors.New("longer than 1 MiB")

// File is a file of procfs or of a cgroup that is read at every sample. It
// stays open and is read with pread(2), which costs a tenth of opening it each
// time, and its buffer is reused, so that a read allocates nothing.
//
// It needs no deadline: the kernel makes these files, and the path to them, from what
// it has in memory. A file that may wait for a disk is read by a deadline.Worker.
//
// A File is not safe for concurrent use. Its owner closes it.
type File struct {
	Path string

	fd  int // 0 while not open: descriptor 0 is never ours
	buf []byte
}

// New returns the file at path, which the first Read opens.
func New(path string) File { return File{Path: path} }

// Read returns the file's present content, valid until the next Read. After an error
// the file is closed, and the next Read opens it anew; if the file was in a cgroup that
// has been removed, this Read does, as there may be another of that name by now. The
// error is a *fs.PathError.
func (f *File) Read() ([]byte, error) {
	wasOpen := f.fd != 0
	b, err := f.readOnce()
	if wasOpen && errors.Is(err, unix.ENODEV) {
		return f.readOnce()
	}
	return b, err
}

func (f *File) readOnce() ([]byte, error) {
	if f.fd == 0 {
		if f.Path == "" {
			return nil, fs.ErrNotExist
		}
		fd, err := unix.Open(f.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: f.Path, Err: err}
		}
		f.fd = fd
		if f.buf == nil {
			f.buf = make([]byte, 4096)
		}
	}
	n := 0
	for {
		got, err := unix.Pread(f.fd, f.buf[n:], int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			f.Close()
			return nil, &fs.PathError{Op: "read", Path: f.Path, Err: err}
		}
		n += got
		// A file whose whole text the kernel makes at once fits in one read. One
		// that is made record by record, such as vmstat, comes in pieces of a
		// page, each shorter than what was asked for: only a piece that is not
		// full, or none, ends it. Another read costs as much as the first, so it
		// follows only where a piece may be missing.
		if n < len(f.buf) && got < pieceSize {
			return f.buf[:n], nil
		}
		if n == len(f.buf) {
			if n >= maxSize {
				f.Close()
				f.buf = nil // not to be kept for the daemon's life
				return nil, &fs.PathError{Op: "read", Path: f.Path, Err: errTooLong}
			}
			f.buf = append(f.buf, make([]byte, len(f.buf))...)
		}
	}
}

// pieceSize is the shortest piece that another may follow: seq_file cuts its page of
// 4 KiB (or more) at the end of a record, and in the files of many records that are
// read here none is longer than 64 bytes.
const pieceSize = 4096 - 64

// Close closes the file; the next Read opens it again.
func (f *File) Close() {
	if f.fd != 0 {
		unix.Close(f.fd)
		f.fd = 0
	}
}

// Number reads a file that holds one number. The error names the file.
func (f *File) Number() (int64, error) {
	b, err := f.Read()
	if err != nil {
		return 0, err
	}
	n, err := ParseNumber(b)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", f.Path, err)
	}
	return n, nil
}

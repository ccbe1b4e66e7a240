package probe

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// maxHotFile bounds what is read of one file. The longest hot file of a real
// kernel, /proc/vmstat, has about 5 KiB.
const maxHotFile = 1 << 20

// errTooLong is wrapped where a file has more than maxHotFile bytes.
var errTooLong = errors.New("longer than 1 MiB")

// hotFile is a file of procfs or of a cgroup that is read at every sample. It
// stays open and is read with pread(2), which costs a tenth of opening it each
// time, and its buffer is reused, so that a read allocates nothing.
//
// It needs no deadline: the kernel makes these files from what it has in memory, and
// keeps the way to where they are mounted in memory, too. What may wait for a disk is
// read by a deadline.Worker.
//
// A hotFile is not safe for concurrent use. Its owner closes it.
type hotFile struct {
	path string
	fd   int // 0 while not open: descriptor 0 is never ours
	buf  []byte
}

func newHotFile(path string) hotFile { return hotFile{path: path} }

// read returns the file's present content, valid until the next read. After an
// error the file is closed and opened anew by the next read, and at once if it
// was in a cgroup that has been removed: one of that name may be there again.
func (f *hotFile) read() ([]byte, error) {
	wasOpen := f.fd != 0
	b, err := f.readOnce()
	if wasOpen && errors.Is(err, unix.ENODEV) {
		return f.readOnce()
	}
	return b, err
}

func (f *hotFile) readOnce() ([]byte, error) {
	if f.fd == 0 {
		if f.path == "" {
			return nil, fs.ErrNotExist
		}
		fd, err := unix.Open(f.path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: f.path, Err: err}
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
			f.close()
			return nil, &fs.PathError{Op: "read", Path: f.path, Err: err}
		}
		n += got
		// A file whose whole text the kernel makes at once fits in one read. One
		// that is made record by record, such as vmstat, comes in pieces of a
		// page, each shorter than what was asked for: only a piece that is not
		// full, or none, ends it. Asking again costs as much as the first read
		// did, so ask only where a piece may be missing.
		if n < len(f.buf) && got < pieceSize {
			return f.buf[:n], nil
		}
		if n == len(f.buf) {
			if n >= maxHotFile {
				f.close()
				f.buf = nil // nobody needs that much again
				return nil, &fs.PathError{Op: "read", Path: f.path, Err: errTooLong}
			}
			f.buf = append(f.buf, make([]byte, len(f.buf))...)
		}
	}
}

// pieceSize is the least length of a piece that more may follow: seq_file cuts
// its page of 4 KiB (or more) at a record's end, and no record of a file of
// many records that is read here is longer than 64 bytes.
const pieceSize = 4096 - 64

func (f *hotFile) close() {
	if f.fd != 0 {
		unix.Close(f.fd)
		f.fd = 0
	}
}

// readError says which file could not be understood, and where.
func readError(path string, err error) error { return fmt.Errorf("read %s: %w", path, err) }

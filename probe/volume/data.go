package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// maxData bounds what is read of a vol_data.json, which has a few hundred bytes.
const maxData = 64 << 10

var (
	errNotRegular = errors.New("not a regular file")
	errTooLarge   = errors.New("longer than 64 KiB")
	errNoVolume   = errors.New("driverName or volumeHandle is missing")
)

// readVolume reads a vol_data.json. It returns false for an ephemeral volume, which
// lives and dies with its pod: nothing attaches such a volume.
func readVolume(path string) (v Volume, ok bool, err error) {
	b, err := readData(path)
	if err != nil {
		return Volume{}, false, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	var data struct {
		Driver    string `json:"driverName"`
		Handle    string `json:"volumeHandle"`
		Lifecycle string `json:"volumeLifecycleMode"`
	}
	if err = json.Unmarshal(b, &data); err == nil && (data.Driver == "" || data.Handle == "") {
		err = errNoVolume
	}
	if err != nil {
		return Volume{}, false, fmt.Errorf("read volume from %s: %w", path, err)
	}
	return Volume{data.Driver, data.Handle}, data.Lifecycle != "Ephemeral", nil
}

// readData reads a regular file. It neither waits for a FIFO nor follows a link:
// anything may be in that place.
func readData(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, errNotRegular
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, errNotRegular
	case st.Size > maxData:
		return nil, errTooLarge
	}
	b := make([]byte, maxData+1) // one more than there may be
	for n := 0; ; {
		got, err := unix.Read(fd, b[n:])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, err
		case got == 0:
			return b[:n], nil
		}
		if n += got; n > maxData {
			return nil, errTooLarge
		}
	}
}

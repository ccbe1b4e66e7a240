package mount

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// maxLine bounds the length of a line. An overlay of many layers has lines longer
// than the 64 KiB that bufio.Scanner allows by itself.
const maxLine = 1 << 20

// ErrFields is wrapped by the error about a line that lacks fields.
var ErrFields = errors.New("too few fields")

var errDevice = errors.New("not a device number")

// Scan calls visit for each line of a mount table, with its mount point unescaped.
// Both slices are valid during the call only. The first malformed line, and the first
// error that visit returns, end it: without that line, another mount would seem to be
// in its place.
func Scan(table io.Reader, visit func(line, point []byte) error) error {
	lines := bufio.NewScanner(table)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	for lines.Scan() {
		line := lines.Bytes()
		point, err := mountPoint(line)
		if err == nil {
			err = visit(line, point)
		}
		if err != nil {
			return fmt.Errorf("line %.60q: %w", line, err)
		}
	}
	return lines.Err()
}

// mountPoint returns the fifth field of a line.
func mountPoint(line []byte) ([]byte, error) {
	for range 4 {
		i := bytes.IndexByte(line, ' ')
		if i < 0 {
			return nil, ErrFields
		}
		line = line[i+1:]
	}
	point, _, found := bytes.Cut(line, []byte{' '})
	if !found {
		return nil, ErrFields
	}
	return unescape(point), nil
}

// parse parses a line such as
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
//
// Fields are separated by one blank each: the source may be empty. Any number of
// optional fields, which we do not need, may precede the "-".
func parse(line []byte) (Info, error) {
	fields := bytes.Split(line, []byte{' '})
	if len(fields) < 10 {
		return Info{}, ErrFields
	}
	dash := slices.IndexFunc(fields[6:], func(f []byte) bool { return string(f) == "-" })
	if dash < 0 || len(fields) < 6+dash+4 {
		return Info{}, ErrFields
	}
	rest := fields[6+dash+1:]
	major, minor, found := bytes.Cut(fields[2], []byte{':'})
	if !found {
		return Info{}, errDevice
	}
	var numbers [4]uint64
	for i, field := range [][]byte{fields[0], fields[1], major, minor} {
		n, err := strconv.ParseUint(string(field), 10, 31)
		if err != nil {
			return Info{}, err
		}
		numbers[i] = n
	}
	return Info{
		ID: int(numbers[0]), Parent: int(numbers[1]), Major: uint32(numbers[2]), Minor: uint32(numbers[3]),
		Root:         string(unescape(fields[3])),
		MountPoint:   string(unescape(fields[4])),
		Options:      string(fields[5]),
		FSType:       string(unescape(rest[0])),
		Source:       string(unescape(rest[1])),
		SuperOptions: string(bytes.Join(rest[2:], []byte{' '})), // a filesystem may forget to escape blanks
	}, nil
}

// unescape undoes \ooo, by which the kernel writes blanks, newlines, '#' and
// backslashes. It copies only where there is something to undo.
func unescape(b []byte) []byte {
	if bytes.IndexByte(b, '\\') < 0 {
		return b
	}
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] == '\\' && i+3 < len(b) && isOctal(b[i+1], '3') && isOctal(b[i+2], '7') && isOctal(b[i+3], '7') {
			out = append(out, (b[i+1]-'0')<<6|(b[i+2]-'0')<<3|(b[i+3]-'0'))
			i += 3
			continue
		}
		out = append(out, b[i])
	}
	return out
}

func isOctal(c, highest byte) bool { return c >= '0' && c <= highest }

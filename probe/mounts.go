package probe

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Mount is one line of /proc/<pid>/mountinfo (Linux 2.6.26). Mounts can be
// compared: another one in the same place is not equal, nor is one that was
// remounted with other options.
type Mount struct {
	// ID identifies the mount while it lasts, on the whole machine. Parent is
	// the mount that MountPoint lies on.
	ID, Parent int
	// Major and Minor are the filesystem's device number: st_dev of its files,
	// except on btrfs.
	Major, Minor uint32
	// Root is the directory within the filesystem that is mounted, MountPoint
	// where it is.
	Root, MountPoint string
	// Options are those of the mount, SuperOptions those of the filesystem,
	// which all its mounts share. Both are separated by commas, with octal
	// escapes as the kernel writes them.
	Options, SuperOptions string
	// FSType is such as "ext4", Source such as "/dev/sda1"; filesystems without
	// a device have any text or none there.
	FSType, Source string
}

// ReadOnly tells whether the filesystem refuses to be written to through the
// mount, and which option says so: "ro" (of the mount or the filesystem), or one
// of those by which ext4 tells that it has given up after an error while it
// still counts as read-write: "emergency_ro" and "shutdown" (Linux 6.15). The
// kernel does not notify about these: look at every sample, or now and then.
func (m *Mount) ReadOnly() (option string, ro bool) {
	for _, option := range [...]string{"emergency_ro", "shutdown"} {
		if hasOption(m.SuperOptions, option) {
			return option, true
		}
	}
	if hasOption(m.Options, "ro") || hasOption(m.SuperOptions, "ro") {
		return "ro", true
	}
	return "", false
}

func hasOption(options, name string) bool {
	for option, rest, more := "", options, true; more; {
		if option, rest, more = strings.Cut(rest, ","); option == name {
			return true
		}
	}
	return false
}

// mountinfoPaths returns where to find the node's mount table: that of its
// process 1, as our own mount namespace may be another one even outside of a
// container (systemd's ProtectSystem and the like). Where hidepid conceals
// process 1, our own table is next best. Unlike most of /proc/1, the file needs
// no privilege.
func mountinfoPaths(procfs string) []string {
	return []string{filepath.Join(procfs, "1/mountinfo"), filepath.Join(procfs, "self/mountinfo")}
}

// FindMount returns the mount that holds path, a path of the node whose /proc is
// at procfs and whose / is at rootfs, as its mount table says. If a filesystem
// that should be at path has vanished, the answer is what lies below.
//
// It never touches path itself, so it does not hang where the filesystem does;
// but it also knows nothing of symbolic links. It reads the whole table, which takes 0.3 ms for 1000 mounts, and the kernel's time to
// write it.
func FindMount(procfs, rootfs, path string) (Mount, error) {
	if !filepath.IsAbs(path) {
		return Mount{}, fmt.Errorf("find mount of %q: not an absolute path", path)
	}
	var first error
	for _, table := range mountinfoPaths(procfs) {
		f, err := os.Open(table)
		if err != nil {
			if first == nil {
				first = err
			}
			continue
		}
		defer f.Close()
		m, err := findMount(f, rootfs, path)
		if err != nil {
			return Mount{}, fmt.Errorf("find mount of %s in %s: %w", path, table, err)
		}
		return m, nil
	}
	return Mount{}, fmt.Errorf("find mount of %s: %w", path, first)
}

// errNoMount says that a table does not even hold the root directory, as in a
// chroot that is no mount point.
var errNoMount = fmt.Errorf("no mount holds it: %w", fs.ErrNotExist)

// findMount reads a table. Its paths are those of the node, or, if it is the
// table of our own mount namespace, below rootfs; it is ours if it has a mount
// at rootfs, where nobody but us mounts anything.
func findMount(r io.Reader, rootfs, path string) (Mount, error) {
	path, rootfs = filepath.Clean(path), filepath.Clean(rootfs)
	below := filepath.Join(rootfs, path)
	// Only a mount on the way to path counts, and the mount that such a one lies
	// on is on the way too. Thousands are not.
	var onTheWay []Mount
	lines := bufio.NewScanner(r)
	// An overlay of many layers has lines longer than Scanner's own limit.
	lines.Buffer(make([]byte, 0, 64<<10), maxHotFile)
	for lines.Scan() {
		line := lines.Bytes()
		point, err := mountPoint(line)
		if err != nil {
			return Mount{}, lineError(line, err)
		}
		if !isWithin(path, point) && !isWithin(below, point) {
			continue
		}
		m, err := parseMount(line)
		if err != nil {
			return Mount{}, lineError(line, err)
		}
		if m.MountPoint == rootfs {
			path = below
		}
		onTheWay = append(onTheWay, m)
	}
	if err := lines.Err(); err != nil {
		return Mount{}, err
	}
	m := walkMounts(onTheWay, path)
	if m == nil {
		return Mount{}, errNoMount
	}
	return *m, nil
}

// walkMounts walks the way to path as the kernel does: from the root, it steps
// onto the first mount that it comes across which lies on the one it is on. The
// longest mount point is not always the answer: it may lie on a directory that a
// later mount further up has hidden.
func walkMounts(mounts []Mount, path string) *Mount {
	listed := make(map[int]bool, len(mounts))
	for i := range mounts {
		listed[mounts[i].ID] = true
	}
	var at *Mount
	for range mounts { // more steps than mounts would be a circle
		var next *Mount
		for i := range mounts {
			m := &mounts[i]
			if !isWithin(path, m.MountPoint) {
				continue
			}
			// The root lies on a mount that cannot be seen, or on itself.
			isRoot := m.Parent == m.ID || !listed[m.Parent]
			liesOn := at != nil && m.Parent == at.ID && !isRoot
			if (liesOn || at == nil && isRoot) && (next == nil || len(m.MountPoint) <= len(next.MountPoint)) {
				next = m
			}
		}
		if next == nil {
			break
		}
		at = next
	}
	return at
}

// isWithin tells whether path is dir or below it; both are clean.
func isWithin[T string | []byte](path string, dir T) bool {
	n := len(dir)
	if n == 0 || n > len(path) || path[:n] != string(dir) {
		return false
	}
	return n == len(path) || dir[n-1] == '/' || path[n] == '/'
}

var (
	errFewFields = errors.New("too few fields")
	errDevice    = errors.New("not a device number")
)

// mountPoint returns the fifth field of a line.
func mountPoint(line []byte) ([]byte, error) {
	for range 4 {
		i := bytes.IndexByte(line, ' ')
		if i < 0 {
			return nil, errFewFields
		}
		line = line[i+1:]
	}
	point, _, found := bytes.Cut(line, []byte{' '})
	if !found {
		return nil, errFewFields
	}
	return unescape(point), nil
}

// parseMount parses a line such as
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
//
// Fields are separated by one blank each: the source may be empty. Before the
// "-" there may be any number of fields that we do not need.
func parseMount(line []byte) (Mount, error) {
	fields := bytes.Split(line, []byte{' '})
	if len(fields) < 10 {
		return Mount{}, errFewFields
	}
	dash := slices.IndexFunc(fields[6:], func(f []byte) bool { return string(f) == "-" })
	if dash < 0 || len(fields) < 6+dash+4 {
		return Mount{}, errFewFields
	}
	rest := fields[6+dash+1:]
	m := Mount{
		Root:         string(unescape(fields[3])),
		MountPoint:   string(unescape(fields[4])),
		Options:      string(fields[5]),
		FSType:       string(unescape(rest[0])),
		Source:       string(unescape(rest[1])),
		SuperOptions: string(bytes.Join(rest[2:], []byte{' '})), // a filesystem may forget to escape blanks
	}
	major, minor, found := bytes.Cut(fields[2], []byte{':'})
	if !found {
		return Mount{}, errDevice
	}
	var numbers [4]int64
	for i, field := range [][]byte{fields[0], fields[1], major, minor} {
		n, err := parseUint(field)
		if err == nil && n > 1<<31-1 {
			err = errRange
		}
		if err != nil {
			return Mount{}, err
		}
		numbers[i] = n
	}
	m.ID, m.Parent, m.Major, m.Minor = int(numbers[0]), int(numbers[1]), uint32(numbers[2]), uint32(numbers[3])
	return m, nil
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

func isOctal(c, most byte) bool { return c >= '0' && c <= most }

// pathWithin returns the path of an open file relative to an open directory
// that it lies in, with a leading slash.
func pathWithin(dir, file int) (string, error) {
	base, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir))
	if err != nil {
		return "", err
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", file))
	if err != nil {
		return "", err
	}
	if !isWithin(path, base) {
		return "", fmt.Errorf("%s is not in %s", path, base)
	}
	return filepath.Join("/", path[len(base):]), nil
}

package probe

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Volume is a CSI volume. Volumes can be compared.
type Volume struct {
	// Driver and Handle are the CSI driver's name, and its name for the volume.
	Driver, Handle string
}

// String returns the name by which Kubernetes knows the volume among those of CSI.
func (v Volume) String() string { return v.Driver + "^" + v.Handle }

// sortVolumes puts volumes in order, each once.
func sortVolumes(volumes []Volume) []Volume {
	slices.SortFunc(volumes, func(a, b Volume) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(volumes)
}

// stagedDirectory is where a kubelet, and what does as it does, stages volumes,
// below the root directory, and podsDirectory is where it mounts them for pods. A
// driver need not stage: then only the latter tells. Below stagedDirectory:
//
//	<driver>/<hash>/globalmount, and vol_data.json beside it     filesystems
//	pv/<name>/globalmount, and vol_data.json beside it           the same before 1.24
//	volumeDevices/staging/<name>, volumeDevices/publish/<name>/<pod>,
//	volumeDevices/<name>/dev/<pod>,
//	and volumeDevices/<name>/data/vol_data.json                  block devices
//
// Below podsDirectory:
//
//	<pod>/volumes/kubernetes.io~csi/<name>/mount, and vol_data.json beside it
const (
	stagedDirectory = "plugins/kubernetes.io/csi"
	podsDirectory   = "pods"

	volumeDataFile = "vol_data.json"
)

// stagedData returns the file that says what is mounted at a point, both relative
// to stagedDirectory; "" if it is no volume's.
func stagedData(point string) string {
	parts := strings.Split(point, "/")
	switch n := len(parts); {
	case n == 3 && parts[2] == "globalmount":
		return filepath.Join(parts[0], parts[1], volumeDataFile)
	case n < 3 || parts[0] != "volumeDevices":
		return ""
	case parts[1] == "staging" || parts[1] == "publish":
		return filepath.Join(parts[0], parts[2], "data", volumeDataFile)
	case parts[2] == "dev":
		return filepath.Join(parts[0], parts[1], "data", volumeDataFile)
	}
	return ""
}

// podData is stagedData for podsDirectory.
func podData(point string) string {
	parts := strings.Split(point, "/")
	if len(parts) != 5 || parts[1] != "volumes" || parts[2] != "kubernetes.io~csi" || parts[4] != "mount" {
		return ""
	}
	return filepath.Join(filepath.Dir(point), volumeDataFile)
}

// volumeMount is a mount of a volume: its line in the mount table, and the file
// that says whose it is.
type volumeMount struct{ line, data string }

// volumeDirectory is a directory that volumes are mounted in.
type volumeDirectory struct {
	path   string        // as it is configured
	places []volumePlace // wherever it has been: what was mounted there may still be
	data   func(point string) string
}

// volumePlace is a directory as the node's mount table has it, and below rootfs, as
// our own has it.
type volumePlace struct{ onNode, here string }

// volumeFinder finds the mounts of volumes on the node whose /proc is at procfs and
// whose / is at rootfs. One goroutine at a time may use it.
type volumeFinder struct {
	procfs, rootfs string
	dirs           [2]volumeDirectory
}

func newVolumeFinder(procfs, rootfs, rootDirectory string) *volumeFinder {
	return &volumeFinder{procfs: procfs, rootfs: rootfs, dirs: [2]volumeDirectory{
		{path: filepath.Join(rootDirectory, stagedDirectory), data: stagedData},
		{path: filepath.Join(rootDirectory, podsDirectory), data: podData},
	}}
}

// mounts returns the mounts of volumes, in a fixed order. It reads the table even
// where neither directory exists: one that is hidden by another mount is as much in
// use as before.
func (f *volumeFinder) mounts() ([]volumeMount, error) {
	for i := range f.dirs {
		if err := f.dirs[i].locate(f.rootfs); err != nil {
			return nil, fmt.Errorf("find volumes: %w", err)
		}
	}
	// Our own table may be of another namespace, and have fewer mounts.
	table := mountinfoPaths(f.procfs)[0]
	file, err := os.Open(table)
	if err != nil {
		return nil, fmt.Errorf("find volumes: %w", err)
	}
	defer file.Close()
	mounts, err := findVolumeMounts(file, f.dirs[:])
	if err != nil {
		return nil, fmt.Errorf("find volumes in %s: %w", table, err)
	}
	return mounts, nil
}

// locate adds the place where the directory is now. What does not exist, or is
// hidden, is looked for below the nearest parent that does.
func (d *volumeDirectory) locate(rootfs string) error {
	for parent := d.path; ; parent = filepath.Dir(parent) {
		onNode, err := resolveOnNode(rootfs, parent)
		if errors.Is(err, fs.ErrNotExist) && parent != "/" {
			continue
		}
		if err != nil {
			return err
		}
		onNode = filepath.Join(onNode, strings.TrimPrefix(d.path, parent))
		if p := (volumePlace{onNode, filepath.Join(rootfs, onNode)}); !slices.Contains(d.places, p) {
			d.places = append(d.places, p)
		}
		return nil
	}
}

func findVolumeMounts(table io.Reader, dirs []volumeDirectory) ([]volumeMount, error) {
	var mounts []volumeMount
	lines := bufio.NewScanner(table)
	lines.Buffer(make([]byte, 0, 64<<10), maxHotFile)
	for lines.Scan() {
		point, err := mountPoint(lines.Bytes())
		if err != nil {
			return nil, lineError(lines.Bytes(), err)
		}
		for i := range dirs {
			if file := dirs[i].dataOf(point); file != "" {
				mounts = append(mounts, volumeMount{lines.Text(), file})
				break
			}
		}
	}
	return sortMounts(mounts), lines.Err()
}

// sortMounts puts mounts in order, each once.
func sortMounts(mounts []volumeMount) []volumeMount {
	slices.SortFunc(mounts, func(a, b volumeMount) int { return strings.Compare(a.line, b.line) })
	return slices.Compact(mounts)
}

// lacks says whether some of the mounts that were there are gone.
func lacks(mounts, were []volumeMount) bool {
	return slices.ContainsFunc(were, func(m volumeMount) bool { return !slices.Contains(mounts, m) })
}

// dataOf returns the file that says what is mounted at point, or "".
func (d *volumeDirectory) dataOf(point []byte) string {
	for _, place := range d.places {
		for _, dir := range []string{place.onNode, place.here} {
			n := len(dir)
			if len(point) <= n+1 || point[n] != '/' || string(point[:n]) != dir {
				continue
			}
			if file := d.data(string(point[n+1:])); file != "" {
				return filepath.Join(place.here, file)
			}
		}
	}
	return ""
}

// resolveOnNode returns where symbolic links lead to on the node, which is what
// its mount table has. Unlike nodePath it does not guess where that cannot be told:
// a volume in use would be missed.
func resolveOnNode(rootfs, path string) (string, error) {
	if filepath.Clean(rootfs) == "/" {
		return filepath.EvalSymlinks(path)
	}
	root, err := unix.Open(rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil { // not for want of the path, even if it does not exist
		return "", fmt.Errorf("open %s: %s", rootfs, err.Error())
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return "", &fs.PathError{Op: "openat2", Path: filepath.Join(rootfs, path), Err: err}
	}
	defer unix.Close(fd)
	return pathWithin(root, fd)
}

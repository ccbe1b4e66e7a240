// Package volume finds out which CSI volumes are in use on a node, for the Node's
// volumesInUse: those that are mounted, or mapped as block devices, whatever a kubelet
// or anybody else wanted.
package volume

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodeprobe/nodeprobe/probe/mount"
	"github.com/nodeprobe/nodeprobe/probe/rootfs"
)

// Volume is a CSI volume. Snapshot can be compared.
type Volume struct {
	// Driver and Handle are the CSI driver's name, and its name for the volume.
	Driver, Handle string
}

// String returns the name that Kubernetes gives the volume among CSI volumes.
func (v Volume) String() string { return v.Driver + "^" + v.Handle }

// sortVolumes sorts volumes and drops duplicates.
func sortVolumes(volumes []Volume) []Volume {
	slices.SortFunc(volumes, func(a, b Volume) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(volumes)
}

// stagedDirectory is where a kubelet, and every agent that follows it, stages volumes,
// below the root directory, and podsDirectory is where it mounts them for pods. A
// driver need not stage; its volumes appear only in the latter. Below stagedDirectory:
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

	dataFile = "vol_data.json"
)

// stagedData returns the file that names the volume mounted at point, both relative to
// stagedDirectory; "" if point is no volume's.
func stagedData(point string) string {
	parts := strings.Split(point, "/")
	switch n := len(parts); {
	case n == 3 && parts[2] == "globalmount":
		return filepath.Join(parts[0], parts[1], dataFile)
	case n < 3 || parts[0] != "volumeDevices":
		return ""
	case parts[1] == "staging" || parts[1] == "publish":
		return filepath.Join(parts[0], parts[2], "data", dataFile)
	case parts[2] == "dev":
		return filepath.Join(parts[0], parts[1], "data", dataFile)
	}
	return ""
}

// podData is stagedData for podsDirectory.
func podData(point string) string {
	parts := strings.Split(point, "/")
	if len(parts) != 5 || parts[1] != "volumes" || parts[2] != "kubernetes.io~csi" || parts[4] != "mount" {
		return ""
	}
	return filepath.Join(filepath.Dir(point), dataFile)
}

// volumeMount is a mount of a volume: its line in the mount table, and the file that
// names the volume.
type volumeMount struct{ line, data string }

// directory is a directory that volumes are mounted in.
type directory struct {
	path   string  // as it is configured
	places []place // wherever it has been: mounts there may still exist
	data   func(point string) string
}

// place is the path of a directory in the node's mount table, and below rootfs, as in
// our own.
type place struct{ onNode, here string }

// finder finds the mounts of volumes on the node whose /proc is at procfs and
// whose / is at rootfs. One goroutine at a time may use it.
type finder struct {
	procfs, rootfs string
	dirs           [2]directory
}

func newFinder(procfs, rootfs, rootDirectory string) *finder {
	return &finder{procfs: procfs, rootfs: rootfs, dirs: [2]directory{
		{path: filepath.Join(rootDirectory, stagedDirectory), data: stagedData},
		{path: filepath.Join(rootDirectory, podsDirectory), data: podData},
	}}
}

// mounts returns the mounts of volumes, sorted. It reads the table even where neither
// directory exists: a volume hidden by another mount is still in use.
func (f *finder) mounts() ([]volumeMount, error) {
	for i := range f.dirs {
		if err := f.dirs[i].locate(f.rootfs); err != nil {
			return nil, fmt.Errorf("find volumes: %w", err)
		}
	}
	// Our own table may be of another namespace, and have fewer mounts.
	table := mount.TablePaths(f.procfs)[0]
	file, err := os.Open(table)
	if err != nil {
		return nil, fmt.Errorf("find volumes: %w", err)
	}
	defer file.Close()
	mounts, err := findMounts(file, f.dirs[:])
	if err != nil {
		return nil, fmt.Errorf("find volumes in %s: %w", table, err)
	}
	return mounts, nil
}

// locate adds the place where the directory is now. One that does not exist, or is
// hidden, would be below the nearest parent that exists.
func (d *directory) locate(root string) error {
	for parent := d.path; ; parent = filepath.Dir(parent) {
		onNode, err := rootfs.Resolve(root, parent)
		if errors.Is(err, fs.ErrNotExist) && parent != "/" {
			continue
		}
		if err != nil {
			return err
		}
		onNode = filepath.Join(onNode, strings.TrimPrefix(d.path, parent))
		if p := (place{onNode, filepath.Join(root, onNode)}); !slices.Contains(d.places, p) {
			d.places = append(d.places, p)
		}
		return nil
	}
}

func findMounts(table io.Reader, dirs []directory) ([]volumeMount, error) {
	var mounts []volumeMount
	err := mount.Scan(table, func(line, point []byte) error {
		for i := range dirs {
			if file := dirs[i].dataOf(point); file != "" {
				mounts = append(mounts, volumeMount{string(line), file})
				break
			}
		}
		return nil
	})
	return sortMounts(mounts), err
}

// sortMounts sorts mounts and drops duplicates.
func sortMounts(mounts []volumeMount) []volumeMount {
	slices.SortFunc(mounts, func(a, b volumeMount) int { return strings.Compare(a.line, b.line) })
	return slices.Compact(mounts)
}

// lacks reports whether any of the mounts seen before are gone.
func lacks(mounts, were []volumeMount) bool {
	return slices.ContainsFunc(were, func(m volumeMount) bool { return !slices.Contains(mounts, m) })
}

// dataOf returns the file that names the volume mounted at point, or "".
func (d *directory) dataOf(point []byte) string {
	for _, p := range d.places {
		for _, dir := range []string{p.onNode, p.here} {
			n := len(dir)
			if len(point) <= n+1 || point[n] != '/' || string(point[:n]) != dir {
				continue
			}
			if file := d.data(string(point[n+1:])); file != "" {
				return filepath.Join(p.here, file)
			}
		}
	}
	return ""
}

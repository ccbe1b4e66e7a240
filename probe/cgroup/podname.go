package cgroup

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/nodeprobe/nodeprobe/probe/rootfs"
)

// PodName is what people call a pod and a container of it. A field is "" if it is
// not known.
type PodName struct {
	Namespace, Pod, Container string
}

// Name finds the names by those of the logs that a kubelet keeps below root:
//
//	/var/log/pods/<namespace>_<pod>_<uid>/<container>/
//	/var/log/containers/<pod>_<namespace>_<container>-<id>.log
//
// The second comes a moment after the container has started, and the first is not
// there where the kubelet's podLogsDir is another. All is "" if there is neither.
// It may hang, as the node's disk may.
func (c Container) Name(root string) PodName {
	if c.ID != "" {
		for _, link := range listNames(root, "var/log/containers") {
			if name, ok := strings.CutSuffix(link, "-"+c.ID+".log"); ok {
				// No name of Kubernetes' holds "_".
				if parts := strings.Split(name, "_"); len(parts) == 3 {
					return PodName{parts[1], parts[0], parts[2]}
				}
			}
		}
	}
	if c.PodUID == "" {
		return PodName{}
	}
	const pods = "var/log/pods"
	for _, dir := range listNames(root, pods) {
		if name, ok := strings.CutSuffix(dir, "_"+c.PodUID); ok {
			parts := strings.Split(name, "_")
			if len(parts) != 2 {
				continue
			}
			n := PodName{Namespace: parts[0], Pod: parts[1]}
			if containers := listNames(root, pods, dir); c.ID != "" && len(containers) == 1 {
				n.Container = containers[0]
			}
			return n
		}
	}
	return PodName{}
}

// listNames returns what is in a directory of the node, which is nothing if it
// cannot be read.
func listNames(root string, path ...string) []string {
	at, err := rootfs.Path(root, filepath.Join(append([]string{"/"}, path...)...))
	if err != nil {
		return nil
	}
	dir, err := os.Open(at)
	if err != nil {
		return nil
	}
	defer dir.Close()
	all, _ := dir.Readdirnames(-1)
	return all
}

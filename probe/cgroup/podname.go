package cgroup

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/nodeprobe/nodeprobe/probe/rootfs"
)

// PodName is the name of a pod and of a container in it. A field is "" if it is not
// known.
type PodName struct {
	Namespace, Pod, Container string
}

// Name finds the names in those of the logs that a kubelet keeps below root:
//
//	/var/log/pods/<namespace>_<pod>_<uid>/<container>/
//	/var/log/containers/<pod>_<namespace>_<container>-<id>.log
//
// The second appears a moment after the container has started, and the first does not
// exist where the kubelet's podLogsDir differs. All fields are "" if there is neither.
// It may hang, as the node's disk may; use a deadline.
func (c Container) Name(root string) PodName {
	if c.ID != "" {
		for _, link := range listNames(root, "var/log/containers") {
			if name, ok := strings.CutSuffix(link, "-"+c.ID+".log"); ok {
				// No name in Kubernetes contains "_".
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

// listNames returns the entries of a directory of the node, none if it cannot be read.
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

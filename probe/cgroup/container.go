package cgroup

import "strings"

// Container is what a cgroup belongs to.
type Container struct {
	// PodUID is the pod's UID in Kubernetes; a static pod's is a hash
	// without dashes unless its manifest names one. "" for a container that is
	// no pod's.
	PodUID string
	// ID is the container's ID at the runtime, without a scheme. "" for the
	// cgroup of a whole pod.
	ID string
}

// Parse finds pod and container in the path of a cgroup, by either of
// the kubelet's cgroup drivers:
//
//	/kubepods/burstable/pod<uid>/<id>                                            cgroupfs
//	/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<u_i_d>.slice/cri-containerd-<id>.scope   systemd
//	/system.slice/kubepods-burstable-pod<u_i_d>.slice:cri-containerd:<id>        a runtime configured for neither
//
// Cgroups above (cgroupRoot, a container that the node itself runs in) and below (the
// init.scope of a systemd in the container) do not matter: of pods or containers inside
// each other the outermost is the node's. It returns false if there is neither.
func Parse(cgroup string) (Container, bool) {
	var outside, inside Container // a container that holds no pod, and one in a pod
	kubepods := false
	for name := range strings.SplitSeq(cgroup, "/") {
		// Split at the colon, such a name is that of a pod and that of a container.
		slice, id, joined := strings.Cut(name, ":")
		if inside.PodUID == "" {
			uid, within := podUID(slice, kubepods)
			kubepods = kubepods || within
			inside.PodUID = uid
			if uid != "" && !joined {
				continue
			}
		}
		if joined {
			name = strings.ReplaceAll(id, ":", "-")
		}
		switch id := containerID(name); {
		case id == "":
		case inside.PodUID != "":
			inside.ID = id
			return inside, true
		case outside.ID == "":
			outside.ID = id
		}
	}
	if inside.PodUID != "" {
		return inside, true
	}
	return outside, outside.ID != ""
}

// podUID returns the UID in the name of a pod's cgroup. Within, and what it returns as
// kubepods, is whether the name is, or is below, the cgroup of all pods: other cgroups
// may be called pod-something.
func podUID(name string, within bool) (uid string, kubepods bool) {
	slice, isSlice := strings.CutSuffix(name, ".slice")
	if !isSlice {
		if uid, ok := strings.CutPrefix(name, "pod"); ok && within {
			return uid, true
		}
		return "", within || name == "kubepods"
	}
	// A slice's name repeats those above it, and as "-" separates them, the
	// kubelet writes "_" for each "-" within one.
	parts := strings.Split(slice, "-")
	for i, part := range parts {
		if part == "kubepods" {
			within = true
		} else if uid, ok := strings.CutPrefix(part, "pod"); ok && within && i == len(parts)-1 {
			return strings.ReplaceAll(uid, "_", "-"), true
		}
	}
	return "", within
}

// containerIDLength is that of containerd, CRI-O, Docker and Podman alike.
const containerIDLength = 64

// containerID returns the ID in the name of a container's cgroup: the bare ID,
// or prefixes such as cri-containerd-, crio-, crio-conmon-, docker- and libpod-,
// with .scope after it or not.
func containerID(name string) string {
	name = strings.TrimSuffix(name, ".scope")
	name = name[strings.LastIndexByte(name, '-')+1:]
	if len(name) != containerIDLength || strings.Trim(name, "0123456789abcdef") != "" {
		return ""
	}
	return name
}

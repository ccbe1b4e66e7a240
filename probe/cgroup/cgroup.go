// Package cgroup finds the node's cgroups: the memory controller, the cgroup that
// holds all pods, and whose a cgroup is.
package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Version is that of the hierarchy which has the memory controller.
type Version uint8

// The versions.
const (
	None Version = iota // no memory controller that can be read
	V1
	V2
)

// String returns "none", "v1" or "v2".
func (v Version) String() string { return [...]string{"none", "v1", "v2"}[v] }

// Memory returns the root directory of the memory controller below cgroupfs, which
// is /sys/fs/cgroup: that directory itself on a cgroup v2 machine, memory/ on v1 and
// on hybrid machines, whose unified/ hierarchy has the memory controller only if v1
// does not. A v2 hierarchy is recognized by its root's memory.stat (Linux 5.8).
func Memory(cgroupfs string) (dir string, version Version) {
	for _, c := range []struct {
		dir, mark string
		version   Version
	}{
		{"memory", "memory.usage_in_bytes", V1},
		{"", "memory.stat", V2},
		{"unified", "memory.stat", V2},
	} {
		dir := filepath.Join(cgroupfs, c.dir)
		if exists(dir, c.mark) {
			return dir, c.version
		}
	}
	return cgroupfs, None
}

// Mounted reports whether a hierarchy of cgroup v2 is mounted at cgroupfs, with any
// controllers or none. Where Memory finds no memory controller, that tells a node
// without one from a cgroupfs that leads nowhere.
func Mounted(cgroupfs string) bool { return Unified(cgroupfs) != "" }

// Unified returns the root directory of the hierarchy of cgroup v2 below cgroupfs, with
// any controllers or none, or "".
func Unified(cgroupfs string) string {
	for _, dir := range []string{cgroupfs, filepath.Join(cgroupfs, "unified")} {
		if exists(dir, "cgroup.controllers") {
			return dir
		}
	}
	return ""
}

// Pods returns the cgroup that a kubelet keeps all pods in, by either of its cgroup
// drivers, or "". Root is that of a hierarchy.
func Pods(root string) string {
	for _, name := range []string{"kubepods.slice", "kubepods"} {
		if exists(root, name) {
			return filepath.Join(root, name)
		}
	}
	return ""
}

// ErrNamespace means that what is mounted as the root of the cgroups is a container's
// own cgroup (by a cgroup namespace, or a bind mount), not the root of the node's.
// The whole node's usage cannot be read there, and cgroups outside of the container
// are not visible.
var ErrNamespace = errors.New("not the root of the node's cgroups, but a container's")

// CheckRoot returns an error that wraps ErrNamespace if dir, as Memory returns it, is
// not the root of the whole hierarchy. The root has files that no other cgroup has,
// and lacks others.
func CheckRoot(dir string, version Version) error {
	if version == V2 && exists(dir, "memory.current") || version == V1 && !exists(dir, "release_agent") {
		return fmt.Errorf("%s: %w", dir, ErrNamespace)
	}
	return nil
}

func exists(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

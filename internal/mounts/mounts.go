// Package mounts reports what becomes of a node's filesystems.
package mounts

import (
	"fmt"
	"log/slog"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/internal/printable"
	"github.com/nodeprobe/nodeprobe/probe"
)

// Reporter reports when a filesystem takes no more writes, or has vanished so that
// another one counts. Neither shows in a condition of the kubelet's.
type Reporter struct {
	// Record posts an Event about the node; it must not block.
	Record func(kind, reason, message string)
	Log    *slog.Logger

	was [2]state // of nodefs and imagefs; owned by Observe
}

// state is what can be told of a filesystem.
type state struct {
	mount  probe.Mount
	gaveUp bool
}

// Observe compares with the snapshot before. Of the first it reports only what is wrong.
// A mount that is not known is no change.
func (m *Reporter) Observe(s *probe.Snapshot) {
	for i, fs := range [...]*probe.Filesystem{&s.NodeFs, &s.ImageFs} {
		was, now := m.was[i], state{fs.Mount, fs.GaveUp}
		if fs.Mount == (probe.Mount{}) || now == was {
			continue
		}
		m.was[i] = now
		// Often both are one.
		if i == 0 || fs.Mount != s.NodeFs.Mount {
			m.report([...]string{"nodefs", "imagefs"}[i], &was, fs)
		}
	}
}

func (m *Reporter) report(name string, was *state, fs *probe.Filesystem) {
	now := &fs.Mount
	known := was.mount != (probe.Mount{})
	if known && (was.mount.MountPoint != now.MountPoint || was.mount.Major != now.Major || was.mount.Minor != now.Minor) {
		m.Log.Warn("another filesystem is mounted", "filesystem", name,
			"was", describe(&was.mount), "now", describe(now))
	}
	before := probe.Filesystem{Mount: was.mount, GaveUp: was.gaveUp}
	_, wasReadOnly, _ := before.ReadOnly()
	why, readOnly, _ := fs.ReadOnly()
	if readOnly == wasReadOnly {
		return
	}
	if readOnly {
		m.Log.Warn("filesystem is read-only", "filesystem", name, "mount", describe(now), "why", why)
		m.Record(v1.EventTypeWarning, "FilesystemIsReadOnly",
			fmt.Sprintf("Filesystem %s (%s) takes no writes: %s", name, describe(now), why))
		return
	}
	m.Log.Info("filesystem takes writes again", "filesystem", name, "mount", describe(now))
	m.Record(v1.EventTypeNormal, "FilesystemIsNotReadOnly",
		fmt.Sprintf("Filesystem %s (%s) takes writes again", name, describe(now)))
}

func describe(m *probe.Mount) string {
	return fmt.Sprintf("%s of %s at %s", printable.Text(m.FSType), printable.Text(m.Source), printable.Text(m.MountPoint))
}

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

	was [2]probe.Mount // of nodefs and imagefs; owned by Observe
}

// Observe compares with the snapshot before. Of the first it reports only what is wrong.
// A mount that is not known is no change.
func (m *Reporter) Observe(s *probe.Snapshot) {
	for i, now := range [...]*probe.Mount{&s.NodeFs.Mount, &s.ImageFs.Mount} {
		was := m.was[i]
		if *now == (probe.Mount{}) || *now == was {
			continue
		}
		m.was[i] = *now
		// Often both are one.
		if i == 0 || *now != s.NodeFs.Mount {
			m.report([...]string{"nodefs", "imagefs"}[i], &was, now)
		}
	}
}

func (m *Reporter) report(name string, was, now *probe.Mount) {
	known := *was != (probe.Mount{})
	if known && (was.MountPoint != now.MountPoint || was.Major != now.Major || was.Minor != now.Minor) {
		m.Log.Warn("another filesystem is mounted", "filesystem", name,
			"was", describe(was), "now", describe(now))
	}
	_, wasReadOnly := was.ReadOnly()
	option, readOnly := now.ReadOnly()
	if readOnly == wasReadOnly {
		return
	}
	if readOnly {
		m.Log.Warn("filesystem is read-only", "filesystem", name, "mount", describe(now), "option", option)
		m.Record(v1.EventTypeWarning, "FilesystemIsReadOnly",
			fmt.Sprintf("Filesystem %s (%s) takes no writes: %s", name, describe(now), option))
		return
	}
	m.Log.Info("filesystem takes writes again", "filesystem", name, "mount", describe(now))
	m.Record(v1.EventTypeNormal, "FilesystemIsNotReadOnly",
		fmt.Sprintf("Filesystem %s (%s) takes writes again", name, describe(now)))
}

func describe(m *probe.Mount) string {
	return fmt.Sprintf("%s of %s at %s", printable.Text(m.FSType), printable.Text(m.Source), printable.Text(m.MountPoint))
}

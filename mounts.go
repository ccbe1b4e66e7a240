package nodeprobe

import (
	"fmt"
	"log/slog"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/internal/printable"
	"github.com/nodeprobe/nodeprobe/probe"
)

// mountReporter reports when a filesystem takes no more writes, or has vanished so that
// another one counts. Neither shows in a condition of the kubelet's.
type mountReporter struct {
	// record posts an Event about the node; it must not block.
	record func(kind, reason, message string)
	log    *slog.Logger

	was [2]probe.Mount // of nodefs and imagefs; owned by observe
}

// observe compares with the snapshot before. Of the first it reports only what is wrong.
// A mount that is not known is no change.
func (m *mountReporter) observe(s *probe.Snapshot) {
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

func (m *mountReporter) report(name string, was, now *probe.Mount) {
	known := *was != (probe.Mount{})
	if known && (was.MountPoint != now.MountPoint || was.Major != now.Major || was.Minor != now.Minor) {
		m.log.Warn("another filesystem is mounted", "filesystem", name,
			"was", describeMount(was), "now", describeMount(now))
	}
	_, wasReadOnly := was.ReadOnly()
	option, readOnly := now.ReadOnly()
	if readOnly == wasReadOnly {
		return
	}
	if readOnly {
		m.log.Warn("filesystem is read-only", "filesystem", name, "mount", describeMount(now), "option", option)
		m.record(v1.EventTypeWarning, "FilesystemIsReadOnly",
			fmt.Sprintf("Filesystem %s (%s) takes no writes: %s", name, describeMount(now), option))
		return
	}
	m.log.Info("filesystem takes writes again", "filesystem", name, "mount", describeMount(now))
	m.record(v1.EventTypeNormal, "FilesystemIsNotReadOnly",
		fmt.Sprintf("Filesystem %s (%s) takes writes again", name, describeMount(now)))
}

func describeMount(m *probe.Mount) string {
	return fmt.Sprintf("%s of %s at %s", printable.Text(m.FSType), printable.Text(m.Source), printable.Text(m.MountPoint))
}

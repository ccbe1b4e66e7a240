package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// requests returns what a program has asked the API server for since a time, by
// its user agent: a kubelet and nodeprobe are the same user.
func requests(t *testing.T, cp *controlplane.ControlPlane, program string, since time.Time) []controlplane.AuditEvent {
	t.Helper()
	events := must.Get(cp.AuditEvents())(t)
	return slices.DeleteFunc(events, func(e controlplane.AuditEvent) bool {
		return !strings.HasPrefix(e.UserAgent, program+"/") || e.RequestReceivedTimestamp.Before(since)
	})
}

// writes is requests without those that only look.
func writes(t *testing.T, cp *controlplane.ControlPlane, program string, since time.Time) []controlplane.AuditEvent {
	t.Helper()
	return slices.DeleteFunc(requests(t, cp, program, since), func(e controlplane.AuditEvent) bool {
		return e.Reads()
	})
}

// done is what the API server has done of that: it may give up on a request, which
// is then sent once more.
func done(events []controlplane.AuditEvent) []controlplane.AuditEvent {
	return slices.DeleteFunc(slices.Clone(events), func(e controlplane.AuditEvent) bool { return e.ResponseStatus.Code/100 != 2 })
}

// of returns those of one kind, such as "patch nodes/status".
func of(events []controlplane.AuditEvent, request string) []controlplane.AuditEvent {
	return slices.DeleteFunc(slices.Clone(events), func(e controlplane.AuditEvent) bool {
		return e.Request() != request
	})
}

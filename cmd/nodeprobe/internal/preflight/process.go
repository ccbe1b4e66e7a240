package preflight

import (
	"cmp"
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/process"
	"github.com/nodeprobe/nodeprobe/probe/cgroup"
)

// Process is what the configuration wants of the agent's own process.
type Process struct {
	DropCapabilities  bool
	LockedMemoryLimit int64 // bytes; 0 locks nothing
	OOMScoreAdj       int
}

// findProcess reports what the kernel grants this process, which has the rights of an
// agent that is started in the same way.
func findProcess(want Process) []Finding {
	own, err := process.OwnCgroup()
	if err != nil { // there is no controller, and no limit
		own = &process.Cgroup{Limit: math.MaxInt64}
	}
	allowed := error(nil)
	if want.LockedMemoryLimit > 0 {
		allowed = process.LockAllowed()
	}
	now, err := process.LowerOOMScore(want.OOMScoreAdj)
	findings := []Finding{findLock(want.LockedMemoryLimit, allowed, own), findOOMScore(want.OOMScoreAdj, now, err)}
	if own.Version == cgroup.V2 {
		findings = append(findings, findProtection(own))
	}
	return findings
}

func findLock(limit int64, allowed error, own *process.Cgroup) Finding {
	f := Finding{What: "memory lock", Outcome: OK}
	switch {
	case limit == 0:
		f.Outcome, f.Detail = Off, "lockedMemoryLimit is 0"
		f.Remedy = "set lockedMemoryLimit; what is not locked has to be read from disk again on a node that is short of memory"
	case allowed != nil:
		f.Outcome = Missing
		f.Detail, f.Remedy = process.LockRemedy(allowed)
		f.Remedy = cmp.Or(f.Remedy, "set lockedMemoryLimit to \"0\" if that cannot be helped")
	case own.Limit == math.MaxInt64:
		f.Detail = fmt.Sprintf("allowed, up to %s; the cgroup has no memory limit", quantity(limit))
	case own.LockBound(limit) < limit:
		f.Detail = fmt.Sprintf("allowed, up to %s: three quarters of the %s that the cgroup may use; lockedMemoryLimit is %s", quantity(own.LockBound(limit)), quantity(own.Limit), quantity(limit))
	default:
		f.Detail = fmt.Sprintf("allowed, up to %s of the %s that the cgroup may use", quantity(limit), quantity(own.Limit))
	}
	return f
}

func findOOMScore(want, now int, err error) Finding {
	f := Finding{What: "oom_score_adj", Outcome: OK, Detail: fmt.Sprint(now)}
	switch {
	case err != nil:
		f.Outcome, f.Detail, f.Remedy = Missing, fmt.Sprintf("%d, and cannot be lowered to %d: %v", now, want, err), process.OOMScoreRemedy
	case now > want:
		f.Detail += fmt.Sprintf(", which is as good as the configured %d", want)
	case now < want:
		f.Detail += fmt.Sprintf(", lower than the configured %d", want)
	}
	return f
}

// findProtection is for information: what is locked needs no other protection.
func findProtection(own *process.Cgroup) Finding {
	f := Finding{What: "memory.min", Outcome: OK, Detail: quantity(own.Min) + " for " + own.Path}
	switch {
	case own.Min > 0:
	case own.Low > 0:
		f.Detail = fmt.Sprintf("0, but memory.low is %s for %s", quantity(own.Low), own.Path)
	default:
		f.Outcome = Off
		f.Detail = "not set for the cgroup " + cmp.Or(own.Unprotected, own.Path)
		f.Remedy = "systemd: MemoryMin= and Slice=-.slice, as a slice without it takes it away; pods get it from their memory request if the kubelet has MemoryQoS"
	}
	return f
}

func quantity(bytes int64) string {
	if bytes == math.MaxInt64 {
		return "max"
	}
	return resource.NewQuantity(bytes, resource.BinarySI).String()
}

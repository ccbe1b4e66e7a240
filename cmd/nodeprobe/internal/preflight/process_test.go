package preflight

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/process"
	"github.com/nodeprobe/nodeprobe/probe/cgroup"
)

func TestProcess(t *testing.T) {
	const mib = 1 << 20
	free := &process.Cgroup{Limit: math.MaxInt64}
	pod := &process.Cgroup{Path: "/", Limit: 64 * mib}
	denied := fmt.Errorf("not permitted to lock memory: RLIMIT_MEMLOCK is 8388608 bytes; %w", process.ErrLockDenied)
	unsafe := fmt.Errorf("not safe to lock memory: vm.overcommit_memory is 2; %w", process.ErrOvercommit)
	v2 := func(min, low int64, unprotected string) Finding {
		return findProtection(&process.Cgroup{Path: "/a/b", Version: cgroup.V2, Limit: math.MaxInt64, Min: min, Low: low, Unprotected: unprotected})
	}
	for _, test := range []struct {
		name    string
		got     Finding
		outcome string
		detail  string
		remedy  string // a part of it
	}{
		{"lock", findLock(48*mib, nil, free), OK, "allowed, up to 48Mi; the cgroup has no memory limit", ""},
		{"lock in a pod", findLock(48*mib, nil, pod), OK, "allowed, up to 48Mi of the 64Mi that the cgroup may use", ""},
		{"no lock wanted", findLock(0, nil, pod), Off, "lockedMemoryLimit is 0", "set lockedMemoryLimit"},
		{"no right to lock", findLock(48*mib, denied, pod), Missing, "not permitted to lock memory: RLIMIT_MEMLOCK is 8388608 bytes", "CAP_IPC_LOCK"},
		{"not safe to lock", findLock(48*mib, unsafe, pod), Missing, "not safe to lock memory: vm.overcommit_memory is 2", "set vm.overcommit_memory to 1"},
		{"cannot lock", findLock(48*mib, unix.ENOMEM, pod), Missing, "cannot allocate memory", `set lockedMemoryLimit to "0"`},
		{
			"lock up to the limit of the pod", findLock(64*mib, nil, pod), OK,
			"allowed, up to 48Mi: three quarters of the 64Mi that the cgroup may use; lockedMemoryLimit is 64Mi", "",
		},
		{"score", findOOMScore(-999, -999, nil), OK, "-999", ""},
		{"score of a pod", findOOMScore(-999, -997, nil), OK, "-997, which is as good as the configured -999", ""},
		{"score that is not raised", findOOMScore(300, 0, nil), OK, "0, lower than the configured 300", ""},
		{"no right to a lower score", findOOMScore(-999, 0, unix.EACCES), Missing, "0, and cannot be lowered to -999: permission denied", "OOMScoreAdjust="},
		{"protected", v2(32*mib, 0, ""), OK, "32Mi for /a/b", ""},
		{"protected a little", v2(0, 64*mib, "/a"), OK, "0, but memory.low is 64Mi for /a/b", ""},
		{"not protected", v2(0, 0, ""), Off, "not set for the cgroup /a/b", "MemoryMin="},
		{"in a slice that is not", v2(0, 0, "/a"), Off, "not set for the cgroup /a", "Slice=-.slice"},
		{"protected from everything", v2(math.MaxInt64, 0, ""), OK, "max for /a/b", ""},
	} {
		f := test.got
		if f.Outcome != test.outcome || f.Detail != test.detail || (f.Remedy == "") != (test.remedy == "") || !strings.Contains(f.Remedy, test.remedy) {
			t.Errorf("%s: %+v", test.name, f)
		}
	}
}

// It reports what this process may do, whatever that is, and does nothing that it may not.
func TestProcessOfThisMachine(t *testing.T) {
	findings := findProcess(Process{LockedMemoryLimit: 48 << 20, OOMScoreAdj: 1000})
	if len(findings) < 2 || findings[0].What != "memory lock" || findings[1].What != "oom_score_adj" || findings[1].Outcome != OK {
		t.Errorf("%+v", findings)
	}
	for _, f := range findings {
		if f.Detail == "" || (f.Remedy == "") != (f.Outcome == OK) {
			t.Errorf("%+v", f)
		}
	}
}

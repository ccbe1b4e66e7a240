//go:build linux && (amd64 || arm64)

package bpf

import (
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
)

// reclaimer calls the functions of reclaim.h on the current thread.
type reclaimer struct {
	t    *testing.T
	coll *ebpf.Collection
}

func newReclaimer(t *testing.T) reclaimer {
	t.Helper()
	return reclaimer{t, testPrograms(t, "reclaim.bpf.c")}
}

func (r reclaimer) call(name string) uint32 {
	r.t.Helper()
	ret, err := r.coll.Programs[name].Run(nil)
	if err != nil {
		r.t.Fatalf("run %s: %v", name, err)
	}
	return ret
}

// counted checks the number of reclaims of each kind, and that the one has taken
// time if and only if it has happened.
func (r reclaimer) counted(direct, cgroup uint64) {
	r.t.Helper()
	var got nodeprobeTotals
	if err := r.coll.Variables[nodeprobeVarCounters].Get(&got); err != nil {
		r.t.Fatal(err)
	}
	if got.DirectReclaims != direct || got.CgroupReclaims != cgroup {
		r.t.Errorf("%d direct and %d cgroup reclaims, want %d and %d", got.DirectReclaims, got.CgroupReclaims, direct, cgroup)
	}
	if (got.DirectReclaimNs > 0) != (direct > 0) || (got.CgroupReclaimNs > 0) != (cgroup > 0) {
		r.t.Errorf("stalled %d ns and %d ns", got.DirectReclaimNs, got.CgroupReclaimNs)
	}
}

func TestReclaim(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := newReclaimer(t)

	if got := Scope(r.call("scope")); got != ScopeUnknown {
		t.Errorf("scope %v at first", got)
	}
	r.call("end_node")
	r.counted(0, 0) // It began before we looked.

	r.call("begin_node")
	r.counted(0, 0)
	if got := Scope(r.call("scope")); got != ScopeNode {
		t.Errorf("scope %v in direct reclaim", got)
	}
	r.call("end_cgroup")
	r.counted(0, 0) // Not what began.
	r.call("end_node")
	r.counted(1, 0)
	r.call("end_node")
	r.counted(1, 0) // Over once.
	if got := Scope(r.call("scope")); got != ScopeNode {
		t.Errorf("scope %v after direct reclaim", got)
	}

	r.call("begin_cgroup")
	r.call("end_cgroup")
	r.counted(1, 1)
	if got := Scope(r.call("scope")); got != ScopeCgroup {
		t.Errorf("scope %v after cgroup reclaim", got)
	}

	// Another thread has nothing to do with it.
	r.call("begin_node")
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if got := Scope(r.call("scope")); got != ScopeUnknown {
			t.Errorf("scope %v in another thread", got)
		}
		r.call("end_node")
	}()
	<-done
	r.counted(1, 1)
	r.call("end_node")
	r.counted(2, 1)
}

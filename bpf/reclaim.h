/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * How long tasks stall on direct reclaim, and for which memory. Inline functions,
 * so that a test can call them from a syscall program: a test machine must not
 * run out of memory as a whole.
 */
#ifndef NODEPROBE_RECLAIM_H
#define NODEPROBE_RECLAIM_H

#include "totals.h"

struct reclaim {
	u64 began; /* CLOCK_MONOTONIC, ns; 0 when it is over */
	u64 scope;
};

/*
 * By thread. A hash, not task storage: its memory is allocated in advance, and
 * this runs when none is free. LRU: nothing removes the entry of a thread that
 * exits. User space sets max_entries by the number of CPUs.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct reclaim);
} reclaims SEC(".maps");

static __always_inline void reclaim_begin(u64 scope)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct reclaim *r = bpf_map_lookup_elem(&reclaims, &tid);
	struct reclaim first = { .scope = scope };

	/* A task that reclaims once does so again: this is half the cost. */
	if (r) {
		r->scope = scope;
		r->began = bpf_ktime_get_ns();
		return;
	}
	first.began = bpf_ktime_get_ns();
	bpf_map_update_elem(&reclaims, &tid, &first, BPF_ANY);
}

/* Returns the time since reclaim_begin; 0 if that ran before Open. */
static __always_inline u64 reclaim_end(u64 scope)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct reclaim *r = bpf_map_lookup_elem(&reclaims, &tid);
	u64 ns;

	if (!r || !r->began || r->scope != scope)
		return 0;
	ns = bpf_ktime_get_ns() - r->began;
	r->began = 0;
	return ns ? ns : 1;
}

static __always_inline void direct_reclaim_end(void)
{
	u64 ns = reclaim_end(SCOPE_NODE);

	if (!ns)
		return;
	add(direct_reclaims, 1);
	add(direct_reclaim_ns, ns);
}

static __always_inline void cgroup_reclaim_end(void)
{
	u64 ns = reclaim_end(SCOPE_CGROUP);

	if (!ns)
		return;
	add(cgroup_reclaims, 1);
	add(cgroup_reclaim_ns, ns);
}

/*
 * What the current task last reclaimed memory for. The OOM killer runs in the
 * task that could not get memory, right after its last attempt at reclaim, so
 * there this is the memory that the victim is killed for. Only a kill by hand
 * (SysRq f) has none.
 */
static __always_inline u64 reclaim_scope(void)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct reclaim *r = bpf_map_lookup_elem(&reclaims, &tid);

	return r ? r->scope : SCOPE_UNKNOWN;
}

#endif

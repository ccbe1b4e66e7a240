/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the programs and user space share: counters, and the events. */
#ifndef NODEPROBE_TOTALS_H
#define NODEPROBE_TOTALS_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>

/*
 * All counters live in one struct in .bss, which user space maps into its own
 * memory: reading them costs neither a system call nor an event. Each field is
 * an aligned u64 and is read whole; the fields are not one consistent cut.
 *
 * One shared copy instead of one per CPU: each event counted here costs the kernel
 * 10 us or more, so a cache line that moves does not matter; and per-CPU maps
 * cannot be mapped.
 */
struct totals {
	u64 tasks;
	u64 forks;
	u64 exits;
	u64 oom_kills;
	u64 direct_reclaims;
	u64 direct_reclaim_ns;
	u64 cgroup_reclaims;
	u64 cgroup_reclaim_ns;
	u64 block_errors;
	u64 lost;
};

struct totals counters;

/*
 * The result must stay unused: then clang emits a plain atomic add, which every
 * JIT has. The JIT for arm64 refuses fetch-and-add and cmpxchg before 5.18.
 */
#define add(counter, n) ((void)__sync_fetch_and_add(&counters.counter, (n)))

enum event_kind {
	EVENT_OOM_KILL = 1,
	EVENT_CROSSING = 2,
	EVENT_READ_ONLY = 3,
	EVENT_STALE = 4,
};

/* The memory that ran out. */
enum scope {
	SCOPE_UNKNOWN = 0,
	SCOPE_NODE = 1,
	SCOPE_CGROUP = 2,
};

/* No padding: every byte of a ring buffer record must be written. */
struct event {
	u64 time; /* CLOCK_MONOTONIC, ns */
	u64 seq;
	u64 cgroup_id;
	u32 pid;
	u16 kind;
	u16 scope;
	u8 comm[16];
};

/* An edge of a watch, see watch.h. kind has the same offset as in struct event. */
struct edge {
	u64 time; /* CLOCK_MONOTONIC, ns */
	u64 seq;  /* odd: it is so now; even: no longer */
	s64 value;
	u32 watch;
	u16 kind;
	u16 epoch; /* of the level */
	s64 limit;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} events SEC(".maps");

#endif

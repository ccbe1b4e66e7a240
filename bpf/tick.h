/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Watches the levels: PIDs where they are allocated and released; everything else
 * from a timer that sleeps as long as is safe (Linux 5.15).
 *
 * What is done for each watch is in functions that are neither inline nor static:
 * the verifier checks those once, instead of once for each watch and each path
 * to it, which are too many.
 */
#ifndef NODEPROBE_TICK_H
#define NODEPROBE_TICK_H

#include "cgroup.h"
#include "decide.h"
#include "disk.h"
#include "memory.h"
#include "totals.h"

/*
 * Counts an edge and reports it. Two CPUs can do so at once, with the same number
 * for the same edge; user space drops the second.
 */
static __always_inline void flip(u64 *edges, u32 kind, u64 watch, s64 value, s64 limit)
{
	u64 seq = *edges + 1;
	struct edge *edge;

	*edges = seq;
	edge = bpf_ringbuf_reserve(&events, sizeof(*edge), 0);
	if (!edge) {
		add(lost, 1);
		return;
	}
	edge->time = bpf_ktime_get_ns();
	edge->seq = seq;
	edge->value = value;
	edge->watch = watch;
	edge->kind = kind;
	edge->epoch = levels.watch[watch].epoch;
	edge->limit = limit;
	bpf_ringbuf_submit(edge, 0);
}

/*
 * Returns the same index in a way that also old verifiers follow: where the compiler
 * keeps a copy of one on the stack, they forget what it was compared with.
 */
static __always_inline u64 bounded(u64 i)
{
	_Static_assert(!(MAX_WATCHES & (MAX_WATCHES - 1)), "not a power of 2");
	asm volatile("%0 &= %1" : "+r"(i) : "i"(MAX_WATCHES - 1));
	return i;
}

static __always_inline void judge(u64 i, s64 value)
{
	const struct want *want = &wants[i];
	struct level *level = &levels.watch[i];
	bool pressure = is(level->pressure);

	level->value = value;
	if (crosses(want, pressure, value))
		flip(&level->pressure, EVENT_CROSSING, i, value, pressure ? want->above : want->below);
}

/* The initial PID namespace: static in the kernel, so the address stays good. */
struct pid_namespace *initial_pid_ns;

/* The kernel's flag in pid_allocated that the namespace may still grow. */
#define PIDNS_ADDING (1U << 31)

/* Returns 0 if it is not known. */
static __always_inline u64 allocated_pids(void)
{
	unsigned int allocated;

	if (!initial_pid_ns || bpf_core_read(&allocated, sizeof(allocated), &initial_pid_ns->pid_allocated))
		return 0;
	return allocated & ~PIDNS_ADDING;
}

/* Up to how many PIDs no more watch comes under pressure, and up to how many the
 * pressure of one ends; 0 if there is none such. A fork and an exit compare with
 * nothing else. */
u64 pids_limit;
u64 pids_release;

__noinline int judge_pids(u64 allocated)
{
	u64 limit = 0, release = 0;

	for (u32 i = 0; i < MAX_WATCHES; i++) {
		const struct want *want = &wants[i];
		s64 most = want->total - want->below;
		s64 few = want->total - want->above;

		if (want->figure != FIGURE_PIDS)
			continue;
		judge(i, want->total - allocated);
		if (is(levels.watch[i].pressure)) {
			if (few > (s64)release)
				release = few;
		} else if (!limit || (u64)most < limit) {
			limit = most;
		}
	}
	/* Of two CPUs the later store wins; the next tick corrects it. */
	pids_limit = limit;
	pids_release = release;
	return 0;
}

static __always_inline void judge_disk(u64 i)
{
	struct level *level = &levels.watch[i];
	struct watch *w = &watches[i];
	bool read_only;
	s64 value;

	if (is(level->stale))
		return;
	value = left_on(w, wants[i].figure);
	read_only = is_read_only(w);
	if (!same_filesystem(w)) {
		flip(&level->stale, EVENT_STALE, i, level->value, 0);
		return;
	}
	if (read_only != is(level->read_only))
		flip(&level->read_only, EVENT_READ_ONLY, i, value, 0);
	judge(i, value);
}

static __always_inline void judge_cgroup(u64 i)
{
	struct level *level = &levels.watch[i];
	struct watch *w = &watches[i];
	s64 value;

	if (is(level->stale))
		return;
	value = wants[i].total - cgroup_in_use(w);
	if (!same_cgroup(w)) {
		flip(&level->stale, EVENT_STALE, i, level->value, 0);
		return;
	}
	judge(i, value);
}

#define NEVER (~0ULL)

struct pace paces[MAX_WATCHES];

/* Measures and judges one watch. Returns how long that is valid, in ns. */
__noinline u64 look_at(u32 index, u64 now)
{
	const struct want *want;
	struct level *level;
	u64 max = PERIOD_MAX;
	u64 i = bounded(index);
	bool pressure;
	u64 ns;

	want = &wants[i];
	level = &levels.watch[i];
	switch (want->figure) {
	case FIGURE_NONE:
		return NEVER;
	case FIGURE_WORKING_SET:
		judge(i, want->total - levels.working_set);
		break;
	case FIGURE_MEM_AVAILABLE:
		judge(i, levels.mem_available);
		break;
	case FIGURE_FREE_BYTES:
	case FIGURE_FREE_INODES:
		if (!(left_out & PART_FILESYSTEMS))
			judge_disk(i);
		if (is(level->stale))
			return PERIOD_MAX;
		max = PERIOD_DISK;
		break;
	case FIGURE_CGROUP_MEMORY:
		if (!(left_out & PART_CGROUPS))
			judge_cgroup(i);
		if (is(level->stale))
			return PERIOD_MAX;
		break;
	}
	pressure = is(level->pressure);
	ns = until_crossing(want, pressure, level->value);
	return patience(&paces[i], now, distance_of(want, pressure, level->value), ns < max ? ns : max);
}

/* Measures and judges everything. Returns how long that is valid, in ns. */
__noinline u64 look(void)
{
	u64 allocated = left_out & PART_PIDS ? 0 : allocated_pids();
	u64 now = bpf_ktime_get_ns();
	u64 period = NEVER;

	if (!(left_out & PART_MEMORY) && num_zones)
		measure_memory();
	if (allocated)
		judge_pids(allocated);
	for (u32 i = 0; i < MAX_WATCHES; i++) {
		u64 ns = look_at(i, now);

		if (ns < period)
			period = ns;
	}
	levels.period_ns = period == NEVER ? 0 : period;
	return period;
}

struct ticker {
	struct bpf_timer timer;
	u64 due;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct ticker);
} tickers SEC(".maps");

/* Measures itself, as the kernel's statistics do not cover timers. */
static int tick(void *map, u32 *key, struct ticker *ticker)
{
	u64 began = bpf_ktime_get_ns();
	u64 late = began - ticker->due;
	u64 period = look();
	u64 now = bpf_ktime_get_ns();

	levels.ticks++;
	levels.tick_ns += now - began;
	if (began > ticker->due && late > levels.lateness_ns)
		levels.lateness_ns = late;
	ticker->due = now + period;
	bpf_timer_start(&ticker->timer, period, 0);
	return 0;
}

static __always_inline void settle(u64 *edges)
{
	*edges += *edges & 1;
}

/* Puts a request into force. What was watched before keeps its state, so there is
 * an event if new thresholds change that. */
__noinline int adopt(u32 index)
{
	u64 i = bounded(index);
	u64 refused = REFUSED_NOT;
	struct watch new = {};
	struct level *level;
	struct want want;
	struct watch *old;

	want = config.watch[i];
	level = &levels.watch[i];
	old = &watches[i];
	switch (want.figure) {
	case FIGURE_PIDS:
		if (left_out & PART_PIDS)
			refused = REFUSED_LEFT_OUT;
		break;
	case FIGURE_FREE_BYTES:
	case FIGURE_FREE_INODES:
		refused = left_out & PART_FILESYSTEMS ? REFUSED_LEFT_OUT : find_filesystem(&new, &want);
		break;
	case FIGURE_WORKING_SET:
	case FIGURE_MEM_AVAILABLE:
		if (left_out & PART_MEMORY)
			refused = REFUSED_LEFT_OUT;
		else if (!num_zones)
			refused = REFUSED_NO_ZONES;
		break;
	case FIGURE_CGROUP_MEMORY:
		refused = left_out & PART_CGROUPS ? REFUSED_LEFT_OUT : find_cgroup(&new, &want);
		break;
	}
	if (refused)
		want.figure = FIGURE_NONE;
	if (want.figure != wants[i].figure || new.sb != old->sb || new.root != old->root ||
	    new.css != old->css || new.cgroup_id != old->cgroup_id) {
		settle(&level->pressure);
		settle(&level->read_only);
		level->value = 0;
		level->epoch++;
		paces[i].moved = 0;
	}
	settle(&level->stale);
	level->refused = refused;
	level->kind = new.kind;
	level->shift = new.shift;
	wants[i] = want;
	*old = new;
	return 0;
}

struct pressure_args {
	u64 rearm;
};

/*
 * User space runs this to put requests into force, or just to measure the levels
 * now. New requests restart the timer, as its present period was computed for the
 * old ones.
 */
SEC("syscall")
int pressure(struct pressure_args *args)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct ticker *ticker;
	u32 zero = 0;
	u64 period;
	long err;

	if (!(left_out & PART_PIDS) && !initial_pid_ns)
		initial_pid_ns = BPF_CORE_READ(task, thread_pid, numbers[0].ns);
	if (!(left_out & PART_FILESYSTEMS) && !levels.cpus)
		levels.cpus = find_cpus(config.cpus);
	/* Each time: memory can be hot-plugged. */
	if (!(left_out & PART_MEMORY))
		find_memory();
	if (!args->rearm) {
		look();
		return 0;
	}
	ticker = bpf_map_lookup_elem(&tickers, &zero);
	if (!ticker)
		return 0;
	err = bpf_timer_init(&ticker->timer, &tickers, CLOCK_MONOTONIC);
	if (err && err != -EBUSY)
		return -err;
	/* Waits for a running tick. */
	bpf_timer_cancel(&ticker->timer);
	pids_limit = 0;
	pids_release = 0;
	for (u32 i = 0; i < MAX_WATCHES; i++)
		adopt(i);
	period = look();
	if (period == NEVER)
		return 0;
	/* Cancelling removes the callback. */
	err = bpf_timer_set_callback(&ticker->timer, tick);
	if (err)
		return -err;
	ticker->due = bpf_ktime_get_ns() + period;
	return -bpf_timer_start(&ticker->timer, period, 0);
}

#endif

/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The decisions and the arithmetic, without anything that only exists in a kernel
 * under pressure: a test calls these functions from a syscall program.
 */
#ifndef NODEPROBE_DECIDE_H
#define NODEPROBE_DECIDE_H

#include "watch.h"

#define USEC_PER_SEC 1000000ULL
#define NSEC_PER_USEC 1000ULL
#define NSEC_PER_MSEC 1000000ULL

/* Without pressure: when the timer ticks at the shorter period, a crossing is
 * noticed half of that late on average. The timer never sleeps longer than the
 * longer one. */
#define PERIOD_MIN (500 * NSEC_PER_USEC)
#define PERIOD_MAX (1000 * NSEC_PER_MSEC)
/* A filesystem that gives up is to be known everywhere within a second. */
#define PERIOD_DISK (800 * NSEC_PER_MSEC)
/* Under pressure: its end is less urgent, but must not be a second late. */
#define RELEASE_MIN (10 * NSEC_PER_MSEC)
#define RELEASE_MAX (100 * NSEC_PER_MSEC)

static __always_inline bool is(u64 edges)
{
	return edges & 1;
}

/*
 * Two thresholds, so that a value that moves between them causes no events. They
 * may be equal.
 */
static __always_inline bool crosses(const struct want *want, bool pressure, s64 value)
{
	return pressure ? value >= want->above : value < want->below;
}

/*
 * How long the timer may sleep without missing that a watch crosses: as long as
 * the value takes to get there at the fastest plausible rate.
 */
static __always_inline u64 until_crossing(const struct want *want, bool pressure, s64 value)
{
	u64 min = pressure ? RELEASE_MIN : PERIOD_MIN;
	u64 max = pressure ? RELEASE_MAX : PERIOD_MAX;
	s64 distance = pressure ? want->above - value : value - want->below;
	u64 ns;

	/* task_newtask notices that by itself. */
	if (want->figure == FIGURE_PIDS && !pressure)
		return max;
	if (distance <= 0)
		return min;
	/* More than a second. Comparing first keeps the product below from
	 * overflowing, which user space limits the rate for (to 2^43). */
	if ((u64)distance >= want->rate)
		return max;
	ns = (u64)distance * USEC_PER_SEC / want->rate * NSEC_PER_USEC;
	if (ns < min)
		return min;
	return ns < max ? ns : max;
}

/* The counters of all zones and nodes, in pages. */
struct pages {
	s64 free;
	s64 reserve;
	s64 low; /* sum of the low watermarks */
	s64 active_file;
	s64 inactive_file;
	s64 slab;
	s64 misc;
	s64 anon;
	s64 file;
};

static __always_inline s64 not_negative(s64 v)
{
	return v < 0 ? 0 : v;
}

/* Half of what could be dropped counts as in use, up to the watermark. */
static __always_inline s64 droppable(s64 pages, s64 low)
{
	s64 half = (u64)pages >> 1;

	return pages - (half < low ? half : low);
}

/* As in the kernel's si_mem_available(), which /proc/meminfo shows. */
static __always_inline s64 mem_available(const struct pages *p)
{
	return not_negative(p->free - p->reserve +
			    droppable(p->active_file + p->inactive_file, p->low) +
			    droppable(p->slab + p->misc, p->low));
}

/*
 * What the kubelet counts as in use: "anon" and "file" of the root's memory.stat
 * (cgroup v2), or its usage_in_bytes, which is made of the same (v1), less
 * inactive_file.
 */
static __always_inline s64 working_set(const struct pages *p)
{
	return not_negative(p->anon + p->file - p->inactive_file);
}

#endif

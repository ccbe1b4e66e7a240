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
 * longer one. Patience makes the shorter ones longer. */
#define PERIOD_MIN (250 * NSEC_PER_USEC)
#define PERIOD_MAX (1000 * NSEC_PER_MSEC)
/* With a filesystem to watch: one system call can take any amount of it. */
#define PERIOD_DISK (200 * NSEC_PER_MSEC)
/* Under pressure: its end is less urgent, but must not be a second late. */
#define RELEASE_MIN (10 * NSEC_PER_MSEC)
#define RELEASE_MAX (100 * NSEC_PER_MSEC)
/* Patience with a figure that stays beside its threshold: the sleep grows with the
 * square of the time that it has not moved, from PERIOD_MIN after 1.5 seconds to
 * PATIENCE_MAX after PATIENCE_TIME. */
#define PATIENCE_MAX (100 * NSEC_PER_MSEC)
#define PATIENCE_TIME (30000 * NSEC_PER_MSEC)
#define PATIENCE_DIVISOR 9000000000ULL /* of the square in us, for the sleep in us */
/* A figure that moves all the time has so many ticks ahead of that, and gets one back
 * each quarter of a second. */
#define PATIENCE_TICK (250 * NSEC_PER_MSEC)
#define PATIENCE_TICKS (1ULL << 19)

static __always_inline bool is(u64 edges)
{
	return edges & 1;
}

static __always_inline s64 not_negative(s64 v)
{
	return v < 0 ? 0 : v;
}

/*
 * Two thresholds, so that a value that moves between them causes no events. They
 * may be equal.
 */
static __always_inline bool crosses(const struct want *want, bool pressure, s64 value)
{
	return pressure ? value >= want->above : value < want->below;
}

/* From the threshold that would be crossed next. */
static __always_inline s64 distance_of(const struct want *want, bool pressure, s64 value)
{
	return pressure ? want->above - value : value - want->below;
}

/*
 * How long the timer may sleep without missing that a watch crosses: as long as
 * the value takes to get there at the fastest plausible rate.
 */
static __always_inline u64 until_crossing(const struct want *want, bool pressure, s64 value)
{
	u64 min = pressure ? RELEASE_MIN : PERIOD_MIN;
	u64 max = pressure ? RELEASE_MAX : PERIOD_MAX;
	s64 distance = distance_of(want, pressure, value);
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

/* How a watch has come to where it is. */
struct pace {
	u64 looked;   /* when it was looked at last */
	s64 distance; /* from its threshold, then */
	u64 moved;    /* when it moved last, and how far it came */
	s64 to;
	u64 spent; /* what its ticks have cost, in ns of time to get them back */
};

/* Whether the figure moved by an eighth of its distance: so it can be at its threshold
 * before long. */
static __always_inline bool moves(const struct pace *p, s64 distance)
{
	s64 change = distance > p->to ? distance - p->to : p->to - distance;

	return change > 0 && change >= not_negative(p->to) >> 3;
}

/*
 * Returns how long to sleep instead of ns, which is what until_crossing says. A disk
 * may stay just above its limit for weeks, and that is no reason to look 4000 times a
 * second all the while. But if it falls, the sleep is a quarter of what is left at the
 * rate since the look before. So a crossing is noticed late, by at most the sleep, if
 * it comes after a time of rest and takes no longer than that sleep.
 */
static __always_inline u64 patience(struct pace *p, u64 now, s64 distance, u64 ns)
{
	u64 slept = now - p->looked;
	s64 fell = p->distance - distance;
	u64 rest, sleep;

	p->looked = now;
	p->distance = distance;
	p->spent = p->spent > slept ? p->spent - slept : 0;
	if (ns >= PATIENCE_MAX || !p->moved || (moves(p, distance) && p->spent < PATIENCE_TICKS * PATIENCE_TICK)) {
		p->moved = now;
		p->to = distance;
	}
	if (ns >= PATIENCE_MAX)
		return ns;
	rest = now - p->moved;
	if (rest > PATIENCE_TIME)
		rest = PATIENCE_TIME;
	rest /= NSEC_PER_USEC;
	sleep = rest * rest / PATIENCE_DIVISOR * NSEC_PER_USEC;
	if (sleep > ns && fell > 0 && distance >= 0) {
		/* Neither product overflows: what is not far away is less than 2^40 away, as
		 * user space limits the rate to 2^43, and the second is less than a sleep. */
		u64 usec = (slept < PERIOD_MAX ? slept : PERIOD_MAX) / NSEC_PER_USEC;
		u64 left = (u64)distance * usec / (u64)fell;

		if (left < sleep * 4 / NSEC_PER_USEC)
			sleep = left * NSEC_PER_USEC / 4;
	}
	if (sleep < ns)
		sleep = ns;
	if (sleep < PATIENCE_MAX)
		p->spent += PATIENCE_TICK;
	return sleep;
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

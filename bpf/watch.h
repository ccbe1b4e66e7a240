/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What is watched: user space's requests, and the levels that it reads back. */
#ifndef NODEPROBE_WATCH_H
#define NODEPROBE_WATCH_H

#include "kernel.h"

#define MAX_WATCHES 16

/* For all of them, less is worse. */
enum figure {
	FIGURE_NONE = 0,
	FIGURE_PIDS = 1,
	FIGURE_WORKING_SET = 2,
	FIGURE_MEM_AVAILABLE = 3,
	FIGURE_FREE_BYTES = 4,
	FIGURE_FREE_INODES = 5,
};

/* Why a request could not be met. */
enum refusal {
	REFUSED_NOT = 0,
	REFUSED_NO_TYPES = 1,
	REFUSED_NO_ZONES = 2,
	REFUSED_NO_FILE = 3,
	REFUSED_FILESYSTEM = 4,
	REFUSED_UNREADABLE = 5,
};

struct want {
	s64 below;
	s64 above;
	s64 total;
	u64 rate; /* per second, not 0 */
	u32 figure;
	u32 fd;
};

/*
 * Written by user space, and read when the program pressure runs with rearm:
 * never while user space writes it.
 */
struct watch_config {
	u64 page_size;
	struct want watch[MAX_WATCHES];
};

/*
 * The counters count edges. The condition holds while its counter is odd: so count
 * and state cannot disagree, although no atomic operation could write both (see
 * totals.h). They never fall, so that user space can compare them with the last
 * event that it saw.
 */
struct level {
	s64 value;
	u64 pressure;
	u64 read_only;
	u64 stale;
	u64 epoch;   /* counts the things watched here; events of others are void */
	u64 refused; /* enum refusal */
};

struct watch_levels {
	u64 ticks;
	u64 tick_ns;
	u64 lateness_ns; /* of the latest tick so far */
	u64 period_ns;
	s64 working_set;   /* bytes */
	s64 mem_available; /* bytes */
	struct level watch[MAX_WATCHES];
};

struct watch_config config;
struct watch_levels levels;

/* The state of each watch in the kernel, beside its request. */
struct watch {
	struct want want;
	struct super_block *sb;
	struct dentry *root;
	struct ext4_sb_info *ext4;
	u32 dev;
	u32 shift; /* of a cluster, to bytes */
};

struct watch watches[MAX_WATCHES];

#endif

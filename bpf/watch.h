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
	FIGURE_CGROUP_MEMORY = 6,
};

/* Why a request could not be met. */
enum refusal {
	REFUSED_NOT = 0,
	REFUSED_NO_TYPES = 1,
	REFUSED_NO_ZONES = 2,
	REFUSED_NO_FILE = 3,
	REFUSED_FILESYSTEM = 4,
	REFUSED_UNREADABLE = 5,
	REFUSED_LEFT_OUT = 6,
	REFUSED_CGROUP = 7,
};

/*
 * What is left out because the verifier of this kernel does not take it, one bit
 * each. User space finds out, and sets this before loading, so that the verifier
 * does not see it.
 */
enum part {
	PART_MEMORY = 1,
	PART_PIDS = 2,
	PART_FILESYSTEMS = 4,
	PART_CGROUPS = 8,
};

const volatile u32 left_out = 0;

enum filesystem {
	FS_OTHER = 0,
	FS_EXT4 = 1,
	FS_XFS = 2,
	FS_BTRFS = 3,
};

/*
 * The fields that are read in the structures of filesystems. User space looks them
 * up, and not the loader: that could only do so once, and these structures are in
 * modules that may be loaded later. Programs cannot be, as the daemon has given up
 * the capability by then. A counter is followed by where its parts are, see percpu.h.
 */
enum field {
	EXT4_FREE,
	EXT4_FREE_PARTS,
	EXT4_DIRTY,
	EXT4_DIRTY_PARTS,
	EXT4_INODES,
	EXT4_INODES_PARTS,
	EXT4_CLUSTER_BITS,
	EXT4_FLAGS,
	EXT4_JOURNAL,
	EXT4_JOURNAL_FLAGS,
	EXT4_SUPER,
	XFS_FREE,
	XFS_FREE_PARTS,
	XFS_SET_ASIDE,
	XFS_BTREES,
	XFS_INODES,
	XFS_INODES_PARTS,
	XFS_FREE_INODES,
	XFS_FREE_INODES_PARTS,
	XFS_MAX_INODES,
	XFS_BLOCK_INODES,
	XFS_STATE,
	XFS_FLAGS,
	XFS_SUPER,
	BTRFS_DATA,
	BTRFS_UNALLOCATED,
	BTRFS_TOTAL,
	BTRFS_USED,
	BTRFS_ON_DISK,
	BTRFS_SUPER,
	NUM_FIELDS,
};

#define NO_FIELD (~0U)

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
	u64 cpus; /* possible ones */
	u64 known; /* filesystems whose fields are, one bit each */
	u32 fields[32]; /* enum field; offsets in bytes, or NO_FIELD */
	struct want watch[MAX_WATCHES];
};

_Static_assert(NUM_FIELDS <= 32, "too many fields");

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
	u32 kind;    /* enum filesystem */
	u32 shift;   /* how much of the figure a block or cluster is: 2 to the power of it */
};

struct watch_levels {
	u64 ticks;
	u64 tick_ns;
	u64 lateness_ns; /* of the latest tick so far */
	u64 period_ns;
	s64 working_set;   /* bytes */
	s64 mem_available; /* bytes */
	u64 cpus; /* whose parts of counters are summed; 0 if they cannot be */
	struct level watch[MAX_WATCHES];
};

struct watch_config config;
struct watch_levels levels;

/* The requests in force. User space writes them where there is no program to. */
struct want wants[MAX_WATCHES];

/* The filesystem of each. */
struct watch {
	struct super_block *sb;
	struct dentry *root;
	void *fs;
	struct cgroup *cgroup;
	struct cgroup_subsys_state *css; /* of the memory controller */
	u64 cgroup_id;
	unsigned long magic;
	u32 dev;
	u32 kind;
	u32 shift;
	u32 unused; /* no padding: the verifier wants all of a copy initialised */
};

struct watch watches[MAX_WATCHES];

#endif

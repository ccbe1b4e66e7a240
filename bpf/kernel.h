/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The kernel's types, as far as nodeprobe.bpf.c uses them. Written by hand: a
 * generated vmlinux.h is 2.8 MB of one kernel's details, and it hides which
 * fields this depends on.
 *
 * preserve_access_index makes clang record each access by name, and the loader
 * patches in the offset from the running kernel's BTF (CO-RE). So the order of the
 * fields here, and what is between them, does not matter.
 */
#ifndef NODEPROBE_KERNEL_H
#define NODEPROBE_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s64 s64;
typedef _Bool bool;

#define true 1
#define false 0

/* From the UAPI, whose numbers never change. */
enum {
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
	BPF_ANY = 0,
};

#define CLOCK_MONOTONIC 1
#define EBUSY 16

struct bpf_timer {
	u64 opaque[2];
} __attribute__((aligned(8)));

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* id is a plain u64 since 5.5: the inode number of the cgroup's directory, whose
 * priv is the cgroup. */
struct kernfs_node {
	u64 id;
	void *priv;
};

struct cgroup_subsys_state;

struct cgroup {
	struct kernfs_node *kn;
	struct cgroup_subsys_state *subsys[1];
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	unsigned int flags;
};

struct css_set {
	struct cgroup_subsys_state *subsys[1];
};

struct pid_namespace {
	unsigned int pid_allocated;
};

struct upid {
	struct pid_namespace *ns;
};

/* numbers[0] is the PID in the initial namespace, whatever the task's own is. */
struct pid {
	struct upid numbers[1];
};

struct task_struct {
	int tgid;
	struct css_set *cgroups;
	struct files_struct *files;
	struct pid *thread_pid;
	char comm[16];
};

/* What memory.h uses. */

typedef struct {
	long counter;
} atomic_long_t;

struct zone {
	unsigned long _watermark[1];
	unsigned long watermark_boost;
	struct pglist_data *zone_pgdat;
	atomic_long_t vm_stat[1];
};

struct zoneref {
	struct zone *zone;
};

struct zonelist {
	struct zoneref _zonerefs[1];
};

struct pglist_data {
	struct zone node_zones[1];
	struct zonelist node_zonelists[1];
	unsigned long totalreserve_pages;
	atomic_long_t vm_stat[1];
};

struct lruvec {
	struct pglist_data *pgdat;
};

struct mem_cgroup_per_node {
	struct lruvec lruvec;
};

struct page_counter {
	atomic_long_t usage;
};

struct memcg_vmstats {
	long state[1];
};

struct mem_cgroup {
	struct cgroup_subsys_state css;
	struct mem_cgroup_per_node *nodeinfo[1];
	struct page_counter memory;
	struct memcg_vmstats *vmstats;
};

/* Before 6.1. */
struct mem_cgroup___inside {
	struct memcg_vmstats vmstats;
};

/* What percpu.h uses. */

struct bpf_array {
	void *pptrs[1];
};

/* What disk.h uses. */

struct file_system_type {
	const char *name;
};

struct super_block {
	u32 s_dev;
	unsigned char s_blocksize_bits;
	struct file_system_type *s_type;
	unsigned long s_flags;
	unsigned long s_magic;
	struct dentry *s_root;
	void *s_fs_info;
};

struct inode {
	struct super_block *i_sb;
	void *i_private;
};

struct file {
	struct inode *f_inode;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct request {
	unsigned int cmd_flags;
	u32 rq_flags;
};

#pragma clang attribute pop

/* The values differ between kernels; bpf_core_enum_value looks them up. */
enum bpf_func_id {
	BPF_FUNC_map_lookup_percpu_elem = 195,
};

enum cgroup_subsys_id {
	memory_cgrp_id,
};

enum zone_stat_item {
	NR_FREE_PAGES,
};

enum node_stat_item {
	NR_INACTIVE_FILE,
	NR_ACTIVE_FILE,
	NR_SLAB_RECLAIMABLE_B,
	NR_ANON_MAPPED,
	NR_FILE_PAGES,
	NR_KERNEL_MISC_RECLAIMABLE,
};

enum zone_watermarks {
	WMARK_LOW,
};

#endif

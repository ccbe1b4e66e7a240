/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The kernel's types, as far as nodeprobe.bpf.c looks into them. Written by
 * hand instead of generated: a generated vmlinux.h is 2.8 MB of one kernel's
 * accidents, and it hides which fields we depend on.
 *
 * preserve_access_index makes clang record each access by name, and the loader
 * patches in the offset that the running kernel's BTF gives (CO-RE). So the
 * order of the fields here, and what lies between them, is of no consequence.
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
typedef _Bool bool;

#define true 1
#define false 0

/* From the UAPI, whose numbers never change. */
enum {
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
	BPF_ANY = 0,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* id is a plain u64 since 5.5: the inode number of the cgroup's directory. */
struct kernfs_node {
	u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
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
	struct pid *thread_pid;
	char comm[16];
};

struct request {
	unsigned int cmd_flags;
	u32 rq_flags;
};

#pragma clang attribute pop

/* The values differ from kernel to kernel; bpf_core_enum_value asks for them. */
enum cgroup_subsys_id {
	memory_cgrp_id,
};

#endif

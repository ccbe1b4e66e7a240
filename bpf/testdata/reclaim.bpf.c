//go:build ignore

/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Lets a test call the functions of reclaim.h, see reclaim_test.go. */
#include "../kernel.h"
#include <bpf/bpf_helpers.h>
#include "../reclaim.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("syscall")
int begin_node(void *ctx)
{
	reclaim_begin(SCOPE_NODE);
	return 0;
}

SEC("syscall")
int end_node(void *ctx)
{
	direct_reclaim_end();
	return 0;
}

SEC("syscall")
int begin_cgroup(void *ctx)
{
	reclaim_begin(SCOPE_CGROUP);
	return 0;
}

SEC("syscall")
int end_cgroup(void *ctx)
{
	cgroup_reclaim_end();
	return 0;
}

SEC("syscall")
int scope(void *ctx)
{
	return reclaim_scope();
}

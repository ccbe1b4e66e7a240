/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What a memory cgroup and those below it use, by either version of cgroups, less
 * the file cache that the kernel would drop first.
 *
 * As with filesystems, nothing here keeps the cgroup: see disk.h.
 */
#ifndef NODEPROBE_CGROUP_H
#define NODEPROBE_CGROUP_H

#include "decide.h"
#include "disk.h"
#include "memory.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#define CGROUP_SUPER_MAGIC 0x27e0eb
#define CGROUP2_SUPER_MAGIC 0x63677270
/* In css.flags; its enum has no name to look up in BTF. */
#define CSS_ONLINE 2
/*
 * Since 6.11 the kernel keeps what it counts for cgroups under numbers of their
 * own. Those of the first few are the old ones, among them NR_INACTIVE_FILE. User
 * space compares the result with memory.stat.
 */
#define MEMCG_INACTIVE_FILE bpf_core_enum_value(enum node_stat_item, NR_INACTIVE_FILE)

/* The cgroup's state in the memory controller; null if it has none. */
static __always_inline struct cgroup_subsys_state *memory_of(struct cgroup *cgroup)
{
	struct cgroup_subsys_state *css = 0;

	if (!bpf_core_enum_value_exists(enum cgroup_subsys_id, memory_cgrp_id))
		return 0;
	bpf_probe_read_kernel(&css, sizeof(css),
			      element(cgroup->subsys, bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id), sizeof(css)));
	return css;
}

/* One that is being removed is not online any more. */
static __always_inline bool same_cgroup(const struct watch *w)
{
	struct cgroup_subsys_state *css = w->css;
	struct cgroup *cgroup = BPF_CORE_READ(css, cgroup);

	return w->cgroup && cgroup == w->cgroup && (BPF_CORE_READ(css, flags) & CSS_ONLINE) &&
	       BPF_CORE_READ(cgroup, kn, id) == w->cgroup_id;
}

/* Fills in the cgroup whose directory is an open file. */
static __always_inline u64 find_cgroup(struct watch *w, const struct want *want)
{
	struct inode *inode = inode_of(want->fd);
	unsigned long magic = BPF_CORE_READ(inode, i_sb, s_magic);
	struct kernfs_node *kn;

	if (!inode)
		return REFUSED_NO_FILE;
	if (!bpf_core_type_exists(struct mem_cgroup) || (magic != CGROUP_SUPER_MAGIC && magic != CGROUP2_SUPER_MAGIC))
		return REFUSED_CGROUP;
	kn = BPF_CORE_READ(inode, i_private);
	w->cgroup = BPF_CORE_READ(kn, priv);
	w->cgroup_id = BPF_CORE_READ(kn, id);
	w->css = memory_of(w->cgroup);
	return same_cgroup(w) ? REFUSED_NOT : REFUSED_CGROUP;
}

/*
 * In pages, of the cgroup and those below it. The kernel adds it up at least every
 * two seconds, and whenever somebody reads memory.stat.
 */
static __always_inline s64 inactive_file(const struct mem_cgroup *memcg)
{
	const struct mem_cgroup___inside *inside = (void *)memcg;
	struct memcg_vmstats *stats;

	if (bpf_core_field_exists(inside->vmstats))
		return counter(inside->vmstats.state, MEMCG_INACTIVE_FILE);
	stats = BPF_CORE_READ(memcg, vmstats);
	return counter(stats->state, MEMCG_INACTIVE_FILE);
}

static __always_inline s64 cgroup_in_use(const struct watch *w)
{
	struct mem_cgroup *memcg;
	s64 usage;

	if (!bpf_core_type_exists(struct mem_cgroup))
		return 0;
	memcg = (void *)w->css - bpf_core_field_offset(struct mem_cgroup, css);
	usage = BPF_CORE_READ(memcg, memory.usage.counter);
	return not_negative(usage - not_negative(inactive_file(memcg))) * config.page_size;
}

#endif

/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The node's memory, summed over the NUMA nodes as /proc/meminfo is. The kernel's
 * own sums (vm_zone_stat, vm_node_stat) are out of reach: their addresses are not
 * in its BTF, and in kallsyms only with KALLSYMS_ALL.
 */
#ifndef NODEPROBE_MEMORY_H
#define NODEPROBE_MEMORY_H

#include "decide.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#define MAX_NODES 16 /* to look for one in */
#define MAX_ZONES 64

/* All zones with memory, node by node, and with the first of each the node. The
 * kernel never frees either, not even when the memory is unplugged. */
struct zone *zones[MAX_ZONES];
struct pglist_data *nodes[MAX_ZONES];
u32 num_zones;

/* Element i of an array in the kernel, where clang cannot record the access as i
 * or the elements' size is only known at load. */
#define element(array, i, size) ((void *)__builtin_preserve_access_index(&(array)[0]) + (i) * (size))

#define counter(array, i)                                                                     \
	({                                                                                    \
		s64 __v = 0;                                                                  \
		bpf_probe_read_kernel(&__v, sizeof(__v), element(array, (u64)(i), sizeof(__v))); \
		__v;                                                                          \
	})

/* The task's memory cgroup: that of the memory hierarchy if that is a v1 one; null
 * without CONFIG_MEMCG. */
static __always_inline struct cgroup_subsys_state *memory_css(struct task_struct *task)
{
	struct css_set *set = BPF_CORE_READ(task, cgroups);
	struct cgroup_subsys_state *css = 0;

	if (!bpf_core_enum_value_exists(enum cgroup_subsys_id, memory_cgrp_id))
		return 0;
	bpf_probe_read_kernel(&css, sizeof(css),
			      element(set->subsys, bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id), sizeof(css)));
	return css;
}

/*
 * Any node that the current task's memory cgroup has had memory on. The length
 * of nodeinfo is not known, so the result is verified: each zone points back at
 * its node.
 */
static __always_inline struct pglist_data *some_node(void)
{
	struct cgroup_subsys_state *css = memory_css((void *)bpf_get_current_task());
	struct mem_cgroup *memcg;

	if (!css)
		return 0;
	memcg = (void *)css - bpf_core_field_offset(struct mem_cgroup, css);
	for (u64 i = 0; i < MAX_NODES; i++) {
		struct mem_cgroup_per_node *info = 0;
		struct pglist_data *node;

		bpf_probe_read_kernel(&info, sizeof(info), element(memcg->nodeinfo, i, sizeof(info)));
		node = BPF_CORE_READ(info, lruvec.pgdat);
		if (node && BPF_CORE_READ(node, node_zones[0].zone_pgdat) == node)
			return node;
	}
	return 0;
}

/* The zones that a node may take memory from are all there are. */
static __always_inline void find_zones(struct zonelist *list)
{
	struct pglist_data *last = 0;

	for (u32 i = 0; i < MAX_ZONES; i++) {
		struct zoneref *ref = element(list->_zonerefs, (u64)i, bpf_core_type_size(struct zoneref));
		struct zone *zone = BPF_CORE_READ(ref, zone);
		struct pglist_data *node = BPF_CORE_READ(zone, zone_pgdat);

		if (!zone) {
			num_zones = i;
			return;
		}
		zones[i] = zone;
		nodes[i] = node == last ? 0 : node;
		last = node;
	}
	/* More than fit here: no figure is better than half a figure. */
	num_zones = 0;
}

static __always_inline void find_memory(void)
{
	struct pglist_data *node;

	if (!bpf_core_type_exists(struct mem_cgroup))
		return;
	node = some_node();
	if (node)
		find_zones(&node->node_zonelists[0]);
}

static __always_inline void add_zone(struct pages *sum, struct zone *zone)
{
	sum->free += counter(zone->vm_stat, bpf_core_enum_value(enum zone_stat_item, NR_FREE_PAGES));
	sum->low += counter(zone->_watermark, bpf_core_enum_value(enum zone_watermarks, WMARK_LOW)) +
		    BPF_CORE_READ(zone, watermark_boost);
}

#define node_counter(node, item) counter((node)->vm_stat, bpf_core_enum_value(enum node_stat_item, item))

static __always_inline void add_node(struct pages *sum, struct pglist_data *node)
{
	sum->reserve += BPF_CORE_READ(node, totalreserve_pages);
	sum->active_file += node_counter(node, NR_ACTIVE_FILE);
	sum->inactive_file += node_counter(node, NR_INACTIVE_FILE);
	sum->slab += node_counter(node, NR_SLAB_RECLAIMABLE_B);
	sum->misc += node_counter(node, NR_KERNEL_MISC_RECLAIMABLE);
	sum->anon += node_counter(node, NR_ANON_MAPPED);
	sum->file += node_counter(node, NR_FILE_PAGES);
}

static __always_inline void measure_memory(void)
{
	struct pages sum = {};

	for (u32 i = 0; i < MAX_ZONES && i < num_zones; i++) {
		add_zone(&sum, zones[i]);
		if (nodes[i])
			add_node(&sum, nodes[i]);
	}
	levels.working_set = working_set(&sum) * config.page_size;
	levels.mem_available = mem_available(&sum) * config.page_size;
}

#endif

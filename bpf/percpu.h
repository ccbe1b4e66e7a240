/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What each CPU counts by itself, before it adds that to a counter of all. The parts
 * of a percpu_counter are at one address plus an offset that each CPU has. No program
 * can read those offsets where the kernel has them, but a map that has a value per CPU
 * shows them: bpf_map_lookup_percpu_elem (5.19) adds them too.
 */
#ifndef NODEPROBE_PERCPU_H
#define NODEPROBE_PERCPU_H

#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#define MAX_CPUS 512

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} per_cpu SEC(".maps");

u64 cpu_offsets[MAX_CPUS];

/* A pointer as a number, which the verifier does not follow. */
static __always_inline u64 number(void *pointer)
{
	u64 n = 0;

	bpf_probe_read_kernel(&n, sizeof(n), &pointer);
	return n;
}

/* Finds the offsets of so many CPUs. Returns how many of them were found: all or none. */
static __always_inline u64 find_cpus(u64 cpus)
{
	u64 base = 0;
	u32 zero = 0;

	if (!bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_map_lookup_percpu_elem) ||
	    !bpf_core_field_exists(struct bpf_array, pptrs) || cpus > MAX_CPUS)
		return 0;
	bpf_probe_read_kernel(&base, sizeof(base), (void *)number(&per_cpu) + bpf_core_field_offset(struct bpf_array, pptrs));
	if (!base)
		return 0;
	for (u32 cpu = 0; cpu < MAX_CPUS && cpu < cpus; cpu++) {
		void *part = bpf_map_lookup_percpu_elem(&per_cpu, &zero, cpu);

		if (!part)
			return 0;
		cpu_offsets[cpu] = number(part) - base;
	}
	return cpus;
}

/* The sum of the parts of a percpu_counter, at percpu_counter.counters. Those of CPUs
 * that are offline are 0. Not inline: the verifier goes through the loop only once. */
__noinline u64 sum_of_parts(u64 counters, u64 cpus)
{
	s64 sum = 0;

	if (!counters)
		return 0;
	for (u32 cpu = 0; cpu < MAX_CPUS && cpu < cpus; cpu++) {
		int part = 0;

		bpf_probe_read_kernel(&part, sizeof(part), (void *)(counters + cpu_offsets[cpu]));
		sum += part;
	}
	return sum;
}

#endif

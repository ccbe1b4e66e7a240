//go:build ignore

/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Lets a test call the functions of decide.h and tick.h, see decide_test.go. */
#include "../kernel.h"
#include <bpf/bpf_helpers.h>
#include "../tick.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct decision {
	struct want want;
	u64 pressure;
	s64 value;
	u64 result;
};

SEC("syscall")
int test_crosses(struct decision *d)
{
	struct want want = d->want;

	d->result = crosses(&want, d->pressure, d->value);
	return 0;
}

SEC("syscall")
int test_until_crossing(struct decision *d)
{
	struct want want = d->want;

	d->result = until_crossing(&want, d->pressure, d->value);
	return 0;
}

/* Judges the value as that of watch 0, whose thresholds it sets. */
SEC("syscall")
int test_judge(struct decision *d)
{
	wants[0] = d->want;
	judge(0, d->value);
	return 0;
}

struct arithmetic {
	struct pages pages;
	s64 mem_available;
	s64 working_set;
};

SEC("syscall")
int test_arithmetic(struct arithmetic *a)
{
	struct pages pages = a->pages;

	a->mem_available = mem_available(&pages);
	a->working_set = working_set(&pages);
	return 0;
}

//go:build ignore

/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The kernel-side programs of nodeprobe. All but one are BTF tracepoint programs
 * (tp_btf, Linux 5.5), named after their tracepoint: of all ways to attach, this
 * one is both cheap and refused by no kernel that has BPF and BTF. The exception is
 * in tick.h, with a timer. They count and compare, and only report to user space
 * OOM kills and levels that cross a threshold.
 *
 * Arguments that no program uses are not declared, because kernels add to them
 * and change their types.
 */
#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "memory.h"
#include "reclaim.h"
#include "tick.h"
#include "totals.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Signal Tasks */

/* Runs after the PID has been allocated: the count includes the new task. */
SEC("tp_btf/task_newtask")
int BPF_PROG(task_newtask, struct task_struct *task)
{
	struct pid_namespace *ns = task->thread_pid->numbers[0].ns;
	u64 allocated = ns->pid_allocated & ~PIDNS_ADDING;

	if (!initial_pid_ns)
		initial_pid_ns = ns;
	/* Of two CPUs the later store wins, which may be the older figure; the
	 * next fork or release corrects that. */
	counters.tasks = allocated;
	add(forks, 1);
	if (pids_limit && allocated > pids_limit)
		judge_pids(allocated);
	return 0;
}

/*
 * A task is counted out here and not in sched_process_exit, which runs before
 * the PID is released (a zombie still holds one): that count would be too high
 * by the task itself, and stay so until the next fork. It would also be a third
 * program per task, at about 60 ns, for the same knowledge. The price is that RCU
 * calls this some milliseconds late. By now the task has no
 * thread_pid any more, hence initial_pid_ns.
 */
SEC("tp_btf/sched_process_free")
int BPF_PROG(sched_process_free)
{
	u64 allocated = allocated_pids();

	add(exits, 1);
	if (!allocated)
		return 0;
	counters.tasks = allocated;
	if (pids_release && allocated <= pids_release)
		judge_pids(allocated);
	return 0;
}

/* Signal OOM */

/* Make clang emit the types' BTF, for bpf2go. */
struct event *event_type __attribute__((unused));
struct edge *edge_type __attribute__((unused));

/*
 * Kernels before 6.9 pass mark_victim the victim's thread ID instead of its
 * task (stable releases differ). User space finds out which and sets this before
 * loading, so that the verifier only sees the branch for this kernel.
 */
const volatile bool victim_is_task = true;

/* The inode number of the directory of the task's memory cgroup, or 0: a kernel that
 * lacks one of the fields kills all the same. */
static __always_inline u64 memory_cgroup_id(struct task_struct *task)
{
	struct cgroup_subsys_state *css;

	if (!bpf_core_field_exists(struct task_struct, cgroups) || !bpf_core_field_exists(struct css_set, subsys) ||
	    !bpf_core_field_exists(struct cgroup_subsys_state, cgroup) || !bpf_core_field_exists(struct cgroup, kn) ||
	    !bpf_core_field_exists(struct kernfs_node, id))
		return 0;
	css = memory_css(task);
	return BPF_CORE_READ(css, cgroup, kn, id);
}

/*
 * The kernel calls this with oom_lock held, so that one CPU at a time is in
 * here and a plain increment makes a sequence number. (An atomic one would need
 * fetch-and-add, see totals.h.)
 */
SEC("tp_btf/mark_victim")
int mark_victim(u64 *ctx)
{
	u64 seq = ++counters.oom_kills;
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		add(lost, 1);
		return 0;
	}
	event->time = bpf_ktime_get_ns();
	event->seq = seq;
	event->kind = EVENT_OOM_KILL;
	event->scope = reclaim_scope();
	if (victim_is_task) {
		struct task_struct *task = (void *)ctx[0];

		event->pid = task->tgid;
		event->cgroup_id = memory_cgroup_id(task);
		bpf_core_read(&event->comm, sizeof(event->comm), &task->comm);
	} else {
		event->pid = ctx[0];
		event->cgroup_id = 0;
		__builtin_memset(event->comm, 0, sizeof(event->comm));
	}
	bpf_ringbuf_submit(event, 0);
	return 0;
}

/* Signal Reclaim */

SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int BPF_PROG(mm_vmscan_direct_reclaim_begin)
{
	reclaim_begin(SCOPE_NODE);
	return 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int BPF_PROG(mm_vmscan_direct_reclaim_end)
{
	direct_reclaim_end();
	return 0;
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int BPF_PROG(mm_vmscan_memcg_reclaim_begin)
{
	reclaim_begin(SCOPE_CGROUP);
	return 0;
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_end")
int BPF_PROG(mm_vmscan_memcg_reclaim_end)
{
	cgroup_reclaim_end();
	return 0;
}

/* Signal BlockIO: one of these two */

/* Only runs for errors, and only for those that the kernel logs. Linux 5.18. */
SEC("tp_btf/block_rq_error")
int BPF_PROG(block_rq_error)
{
	add(block_errors, 1);
	return 0;
}

/*
 * The same for older kernels, at the price of a run per request. The conditions
 * are those of block_rq_error: it ignores commands passed through from user space,
 * such as smartctl's, and requests marked quiet.
 */
#define REQ_OP_MASK 0xff
#define REQ_OP_PASSTHROUGH_FIRST 32 /* SCSI_IN; DRV_IN is 34 */
#define REQ_OP_PASSTHROUGH_LAST 35  /* DRV_OUT */

/*
 * RQF_QUIET as it was before block_rq_error existed. Later kernels moved it, and
 * have no enum of one name to look it up by. A variable, as the tests run this on
 * those kernels too.
 */
const volatile u32 rqf_quiet = 1 << 11;

static __always_inline bool logged(struct request *rq)
{
	unsigned int op = rq->cmd_flags & REQ_OP_MASK;

	return !(rq->rq_flags & rqf_quiet) && (op < REQ_OP_PASSTHROUGH_FIRST || op > REQ_OP_PASSTHROUGH_LAST);
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(block_rq_complete, struct request *rq, int error)
{
	if (error && logged(rq))
		add(block_errors, 1);
	return 0;
}

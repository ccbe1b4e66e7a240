package bpf

// Hook is a program and the place in the kernel where it is attached.
type Hook struct {
	// Signal is the signal that the program is part of.
	Signal Signal
	// Name is the program type and the tracepoint, such as
	// "tp_btf/task_newtask"; or "bpf_timer/tick".
	Name string
	// Attached reports whether the program is attached.
	Attached bool
	// Err is why it is not; nil if Attached. It wraps ErrDisabled,
	// errors.ErrUnsupported (the kernel or the architecture lacks something),
	// os.ErrPermission, os.ErrNotExist (no kernel BTF), or the kernel's error. "%+v"
	// prints the whole log of the verifier.
	Err error
	// Remedy is what an operator can do about Err, without a full stop; "" if
	// Attached.
	Remedy string
}

// program is an entry of the table of programs.
type program struct {
	signal Signal
	// name is that of the program, and of the tracepoint that it is written for.
	name string
	// timer is the function that a timer calls, for a program without a tracepoint.
	timer string
	// needs is the kernel that has the tracepoint or timer.
	needs string
	// instead is the program for kernels without it.
	instead string
}

// programs lists what Open attaches, by signal and in order.
func programs() []program {
	return []program{
		{signal: Tasks, name: "task_newtask", needs: "Linux 5.8"},
		{signal: Tasks, name: "sched_process_free", needs: "Linux 5.8"},
		{signal: OOM, name: "mark_victim", needs: "Linux 5.8"},
		{signal: Reclaim, name: "mm_vmscan_direct_reclaim_begin", needs: "Linux 5.5"},
		{signal: Reclaim, name: "mm_vmscan_direct_reclaim_end", needs: "Linux 5.5"},
		{signal: Reclaim, name: "mm_vmscan_memcg_reclaim_begin", needs: "Linux 5.5 with CONFIG_MEMCG"},
		{signal: Reclaim, name: "mm_vmscan_memcg_reclaim_end", needs: "Linux 5.5 with CONFIG_MEMCG"},
		{signal: BlockIO, name: "block_rq_error", needs: "Linux 5.18 with CONFIG_BLOCK", instead: "block_rq_complete"},
		{signal: Pressure, name: "pressure", timer: "tick", needs: "Linux 5.15"},
	}
}

// hook returns the Hook of the program, not attached.
func (p program) hook() Hook {
	name := "tp_btf/" + p.name
	if p.timer != "" {
		name = "bpf_timer/" + p.timer
	}
	return Hook{Signal: p.signal, Name: name}
}

// Package process is about nodeprobe's own process: its capabilities, memory, threads,
// timers, the metrics of what it costs, and the service manager that started it.
//
// [DropPrivileges], [KeepThreads] and [RelaxTimers] affect every thread, and wait for
// each of them. Call them at the start, before anything may hang in the kernel.
package process

package bpf

// Signal is a group of programs, and what they count or watch. The programs of a signal
// are attached together or not at all, and each signal independently of the others.
type Signal uint8

// The signals, in the order in which they are attached.
const (
	// Tasks gives Counters.Tasks, Forks and Exits.
	Tasks Signal = iota
	// OOM gives Counters.OOMKills and events of kind OOMKill.
	OOM
	// Reclaim gives the direct and cgroup reclaim counters.
	Reclaim
	// BlockIO gives Counters.BlockErrors.
	BlockIO
	// Pressure gives Levels and the events of watches. A watch on PIDs needs Tasks,
	// too.
	Pressure

	// NumSignals is the number of signals.
	NumSignals = int(iota)
)

// String returns the name used in logs, metrics and preflight.
func (s Signal) String() string {
	return [NumSignals]string{"tasks", "oom", "reclaim", "blockio", "pressure"}[s]
}

// SignalSet is a set of signals.
type SignalSet uint8

// Has reports whether s is in the set.
func (set SignalSet) Has(s Signal) bool { return set&(1<<s) != 0 }

// With returns the set with s added.
func (set SignalSet) With(s Signal) SignalSet { return set | 1<<s }

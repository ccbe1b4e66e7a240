package heartbeat

import (
	"context"
	"log/slog"
	"time"
)

// Results of a renewal attempt: the values of State.Result and of the label
// of nodeprobe_heartbeat_renewals_total.
const (
	// ResultSuccess: the API server stored our renewal.
	ResultSuccess = "success"
	// ResultFailure: a call failed. One round may count several.
	ResultFailure = "failure"
	// ResultConflict: another client changed the lease; it is read again at once. Never
	// a State.Result.
	ResultConflict = "conflict"
	// ResultUnhealthy: not attempted, because Config.Healthy returned an error.
	ResultUnhealthy = "skipped_unhealthy"
	// ResultForeign: not attempted, because another client renews the lease.
	ResultForeign = "skipped_foreign"
	// ResultNoNode: not attempted, because there is no Node.
	ResultNoNode = "skipped_no_node"
)

// State is what a Heartbeater last knew: a value that does not change.
type State struct {
	// Renewed is when the last successful renewal was sent, zero before the
	// first. It carries a monotonic reading, so that time.Since is the age of the
	// lease even if the wall clock was set.
	Renewed time.Time
	// RenewTime is what that renewal wrote. It is ahead of the wall clock
	// after that was stepped back.
	RenewTime time.Time

	// Result is the result of the last attempt, one of the Result constants, empty
	// before the first. An attempt that still lasts because the API server is away is
	// a ResultFailure.
	Result string
	// Err is why Result is not ResultSuccess, else nil.
	Err error

	// ForeignHolder is the lease's holderIdentity if that is not the node's name,
	// else empty.
	ForeignHolder string
	// ForeignWriter is true if the last renewal seen in the lease is another client's.
	// While that is fresh, Result is ResultForeign.
	ForeignWriter bool
	// ForeignManager is the other client's field manager, such as "kubelet", if the API
	// server recorded it. ForeignSeen is when one of its renewals was last noticed. Both
	// stay after it has fallen silent.
	ForeignManager string
	ForeignSeen    time.Time
}

// State returns what the Heartbeater last knew. It never blocks and may be
// called at any time from any goroutine.
func (h *Heartbeater) State() State { return *h.state.Load() }

// change changes the state. Only Run's goroutine may call it.
func (h *Heartbeater) change(f func(*State)) {
	state := h.State()
	f(&state)
	h.state.Store(&state)
}

// noteHolder logs a foreign holder of the lease, once per change.
func (h *Heartbeater) noteHolder() {
	holder := ""
	if h.lease != nil {
		holder = foreignHolder(h.lease, h.config.NodeName)
	}
	if holder == h.State().ForeignHolder {
		return
	}
	h.change(func(s *State) { s.ForeignHolder = holder })
	if holder != "" {
		h.logger.Warn("the lease has another holder", "holder", holder)
	} else {
		h.logger.Info("the lease has no other holder any more")
	}
}

// report counts the result of an attempt and logs it, at level Debug unless the result is
// another than before, or the reason of a failure is new since the last success.
func (h *Heartbeater) report(result string, err error, args ...any) {
	h.metrics.renewals.WithLabelValues(result).Inc()
	before := h.State()
	h.change(func(s *State) { s.Result, s.Err = result, err })

	level, message := slog.LevelWarn, "failed to renew the lease"
	switch result {
	case ResultSuccess:
		level, message = slog.LevelInfo, "renewing the lease"
	case ResultUnhealthy:
		message = "not renewing the lease: unhealthy"
	case ResultForeign:
		message = "not renewing the lease: another client does"
		args = append(args, "manager", before.ForeignManager, "holder", before.ForeignHolder)
	case ResultNoNode:
		level, message = slog.LevelInfo, "not renewing the lease: the node does not exist"
	}
	if result == ResultSuccess {
		clear(h.failures)
	}
	if !h.newFailure(result, err) && result == before.Result {
		level = slog.LevelDebug
	}
	if err != nil {
		args = append(args, "err", err)
	}
	h.logger.Log(context.Background(), level, message, args...)
}

// newFailure reports whether a failure has a reason that is new since the last success.
// Texts that never repeat are not worth a line each.
func (h *Heartbeater) newFailure(result string, err error) bool {
	const maxReasons = 8
	if result != ResultFailure || len(h.failures) == maxReasons {
		return false
	}
	text := err.Error()
	_, known := h.failures[text]
	h.failures[text] = struct{}{}
	return !known
}

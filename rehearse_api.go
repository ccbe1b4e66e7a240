package nodeprobe

import (
	"context"
	"errors"

	"github.com/nodeprobe/nodeprobe/internal/judge"
	"github.com/nodeprobe/nodeprobe/internal/rehearsal"
	"github.com/nodeprobe/nodeprobe/status"
	"github.com/nodeprobe/nodeprobe/status/node"
)

// newWriters makes writers of a content about a Node that exists. Allow returns why
// nothing may be sent, or nil.
func (r *rehearser) newWriters(content status.Content, allow func() error, component string) (*rehearsal.Writers, error) {
	return rehearsal.NewWriters(rehearsal.Config{
		API: clientConfig(&r.cfg), FieldManager: r.cfg.FieldManager, Content: content, Allow: allow,
		Component: component, Timeout: callTimeout(&r.cfg), Logger: r.log,
	})
}

func (observeMode) rehearse(context.Context, *rehearser) error { return nil }

// rehearse posts the rehearsed conditions.
func (m *augmentMode) rehearse(ctx context.Context, r *rehearser) error {
	if err := rehearsal.Ready(ctx, m.updater.Ready); err != nil {
		return err
	}
	content := status.NewConditions(m.cfg.FieldManager)
	content.Set(nodeConditions(r.released.Findings))
	w, err := r.newWriters(content, m.updater.Gone, m.cfg.FieldManager)
	if err != nil {
		return err
	}
	defer w.Close()
	return w.Post(ctx, func() { content.Set(nodeConditions(r.pressed.Findings)) })
}

// rehearse reads the Node through errors.
func (m *shadowMode) rehearse(ctx context.Context, r *rehearser) error {
	w, err := r.newWriters(status.Follow{}, m.updater.Gone, r.cfg.FieldManager)
	if err != nil {
		return err
	}
	defer w.Close()
	return w.Read(ctx)
}

// rehearse posts the rehearsed verdicts and conditions, and renews the Lease.
func (m *ownMode) rehearse(ctx context.Context, r *rehearser) error {
	if err := m.vouch(); err != nil {
		return err
	}
	if err := rehearsal.Ready(ctx, m.updater.Ready); err != nil {
		return err
	}
	cfg := nodeConfig(&r.cfg)
	cfg.Setters = nil // they are the caller's, and run at each pass anyway
	cfg.Healthy, cfg.RuntimeErrors = m.sampler.Healthy, m.runtimeErrors
	content := node.New(cfg)
	observe := func(a *judge.Assessment) {
		m.mu.Lock()
		facts := m.facts
		m.mu.Unlock()
		facts.Verdicts = a.Verdicts
		facts.Conditions = nodeConditions(withoutRepeated(a.Findings, a.Rules))
		content.Observe(facts)
	}
	observe(&r.released)
	w, err := r.newWriters(content, m.vouch, "kubelet")
	if err != nil {
		return err
	}
	defer w.Close()
	return errors.Join(
		w.Post(ctx, func() { observe(&r.pressed) }),
		w.Heartbeat(ctx, m.vouch),
	)
}

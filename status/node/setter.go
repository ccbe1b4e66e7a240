package node

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// Setter changes the part of a Node that it knows about. What it has changed is kept if
// it returns an error, and the setters that follow run all the same.
//
// A user's setter (see Config.Setters) gets a copy of its own, with labels and
// annotations that are not nil. It runs at each pass, and may change all of the Node's
// status, its labels and its annotations, but not the kubelet's two labels kubernetes.io/os
// and kubernetes.io/arch. An extended resource needs both capacity and allocatable. The
// spec is written when the Node is created, and never after. A setter that panics, or that
// does not return in its share of Config.Timeout, costs what it would have set, and one
// that hangs is not called again until it has returned. ctx ends with its share.
type Setter func(ctx context.Context, node *v1.Node) error

// setters returns the built-in ones, in the kubelet's order: Ready is the last of the
// kubelet's conditions. Conditions of our own come after it.
func (p *pass) setters() []Setter {
	facts := p.facts
	pipeline := []Setter{
		nodeAddress(p.cfg.Addresses),
		machineInfo(p.resources, p.cfg.FieldManager, facts),
		versionInfo(p.cfg.KubeletVersion, facts),
		runtimeVersion(facts),
		daemonEndpoints(p.cfg.Port),
		images(facts),
		goRuntime(),
		runtimeHandlers(facts),
		nodeFeatures(facts),
		volumeLimits(facts),
	}
	for i := range facts.Verdicts {
		pipeline = append(pipeline, pressureCondition(&facts.Verdicts[i], p.now))
	}
	return append(pipeline,
		readyCondition(p.resources.LocalStorageCapacityIsolation, &p.readiness, p.now),
		p.ownConditions(), volumesInUse(facts))
}

// apply runs the built-in setters and then the users' over node. An error of one does
// not keep the others from running.
func (p *pass) apply(ctx context.Context, node *v1.Node) error {
	var errs []error
	for _, set := range p.setters() {
		if err := set(ctx, node); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, p.applyUsers(ctx, node)...)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("set node status: %w", err)
	}
	return nil
}

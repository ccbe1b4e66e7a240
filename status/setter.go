// Package status keeps a Node's status on the API server up to date.
//
// A pipeline of setters turns what the probe found out into the status of a
// copy of the last known Node. If that differs from the last known Node, or if
// the report period is over, the Updater sends the difference as one patch of
// nodes/<name>/status, and the answer becomes the last known Node.
//
// The pipeline, its order and the words in conditions are those of the kubelet
// 1.36, so that the control plane cannot tell the two apart.
package status

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// Setter changes the part of a Node that it knows about. It may leave the Node
// partly changed where it returns an error; the setters that follow run all
// the same.
//
// A user's setter gets a Node of its own, with labels and annotations that are not
// nil, and may change all of its status, its labels and its annotations, at each
// pass. An extended resource needs both capacity and allocatable. The spec is
// written when the Node is created, and never after.
type Setter func(ctx context.Context, node *v1.Node) error

// Facts is what one pass of the pipeline works from: values, with nothing live
// behind them.
type Facts struct {
	// Snapshot is the latest sample. Its Time is zero before the first.
	Snapshot probe.Snapshot
	// Verdicts are the evaluator's, one per condition.
	Verdicts [pressure.NumConditions]pressure.Verdict
	// Runtime is what the container runtime tells; nil on a node without one. It is
	// not changed once it was given, and the same pointer stands for the same facts.
	Runtime *Runtime
	// Volumes are those in use; nil while that is not known. VolumeLimits are nil
	// where nobody says any. Of both the same holds as of Runtime.
	Volumes      *Volumes
	VolumeLimits *VolumeLimits
	// Unhealthy is why this process cannot vouch for the node, or nil.
	Unhealthy error
	// Urgent says that a change must not wait for its turn: there may be none.
	Urgent bool

	healthSince time.Time // filled in by the Updater
}

// setters returns the pipeline for one pass, in the kubelet's order: Ready is
// the last of the kubelet's conditions. The user's own setters come after it.
func setters(cfg *Config, facts *Facts, now time.Time) []Setter {
	pipeline := []Setter{
		nodeAddress(cfg.Addresses),
		machineInfo(&cfg.Resources, facts),
		versionInfo(cfg.KubeletVersion, facts),
		runtimeVersion(facts),
		daemonEndpoints(cfg.Port),
		images(facts),
		goRuntime(),
		runtimeHandlers(facts),
		nodeFeatures(facts),
		volumeLimits(facts),
	}
	for i := range facts.Verdicts {
		pipeline = append(pipeline, pressureCondition(&facts.Verdicts[i], now))
	}
	pipeline = append(pipeline, readyCondition(cfg.Resources.LocalStorageCapacityIsolation, facts, now), volumesInUse(facts))
	if len(cfg.Setters) > 0 {
		pipeline = append(pipeline, detach)
	}
	return append(pipeline, cfg.Setters...)
}

// detach gives the users' setters a Node that shares nothing with the facts and the
// configuration, which outlive the pass. Without such setters nobody changes in
// place what was set, and there is no need for a copy.
func detach(_ context.Context, node *v1.Node) error {
	*node = *node.DeepCopy()
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	return nil
}

// apply runs the pipeline over node. An error of one setter does not keep the
// others from running.
func apply(ctx context.Context, node *v1.Node, pipeline []Setter) error {
	var errs []error
	for _, set := range pipeline {
		if err := set(ctx, node); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("set node status: %w", err)
	}
	return nil
}

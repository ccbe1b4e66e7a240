package nodeprobe

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/internal/judge"
	"github.com/nodeprobe/nodeprobe/internal/staged"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/arm"
	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/status/node"
)

// Preview is what an Agent in mode Own would find and post.
type Preview struct {
	// State is that of the node, without what goes on in a running Agent.
	State State
	// Node is the Node that would be created. NodeErr is about the parts that could not
	// be set, VolumesErr about the volumes in use, ReservedErr about reservations of more
	// than the node has.
	Node                             *v1.Node
	NodeErr, VolumesErr, ReservedErr error
}

// maxPreviewLookup bounds the lookup of the node's name.
const maxPreviewLookup = 5 * time.Second

// NewPreview samples the node, for as long as watch to tell the time to each limit, and
// returns what an Agent would find and post. It needs no API server and writes nothing.
// The error is about cfg, or the cause of ctx's end.
func NewPreview(ctx context.Context, cfg Config, watch time.Duration) (*Preview, error) {
	cfg.Mode, cfg.Shadow, cfg.Registerer = Observe, false, nil
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure preview: %w", err)
	}
	reg := new(staged.Registry)
	sensor := bpf.Open(bpf.Options{Disabled: cfg.DisableBPF})
	defer sensor.Close()
	sampler, err := probe.New(samplerConfig(&cfg, sensor, reg))
	if err != nil {
		return nil, fmt.Errorf("set up sampler: %w", err)
	}
	defer sampler.Close()
	j := judge.New(policy(&cfg), arm.New(arm.Config{
		Watch: func([]bpf.Watch) error { return bpf.ErrDisabled }, Levels: sensor.Levels, Logger: cfg.Logger,
	}), cfg.Logger, reg)
	if err := sampleFor(ctx, watch, func() { j.Observe(sampler.Sample()) }); err != nil {
		return nil, err
	}
	runtime, err := newRuntime(&cfg, nil, reg)
	if err != nil {
		return nil, err
	}
	defer runtime.Close()
	volumes, err := newVolumes(&cfg, nil, reg)
	if err != nil {
		return nil, err
	}
	reported, inUse := runtime.Sample(ctx), volumes.Sample(ctx)
	a := j.Assess()
	a.Findings = withoutRepeated(a.Findings, cfg.Conditions)
	limits := node.VolumeLimits(cfg.VolumeLimits)
	nodeCfg := nodeConfig(&cfg)
	nodeCfg.Healthy, nodeCfg.RuntimeErrors = sampler.Healthy, reported.Unready
	content := node.New(nodeCfg)
	content.Observe(node.Facts{
		Snapshot: a.Snapshot, Verdicts: a.Verdicts, Conditions: nodeConditions(a.Findings),
		Runtime: node.RuntimeFacts(reported, cfg.MaxImages), Volumes: node.VolumeFacts(inUse), VolumeLimits: &limits,
	})
	p := &Preview{
		State: State{
			Mode: Own, NodeName: cfg.NodeName, Snapshot: a.Snapshot, Verdicts: a.Verdicts, Conditions: a.Findings,
			Estimates: a.Estimates, Hooks: sensor.Hooks(), Samples: sampler.Causes(), Runtime: reported,
		},
		VolumesErr: inUse.Err, ReservedErr: checkReserved(&cfg, &a.Snapshot),
	}
	ctx, stop := context.WithTimeout(ctx, maxPreviewLookup)
	defer stop()
	p.Node, _, p.NodeErr = content.Initial(ctx, a.Snapshot.Time)
	p.Node.APIVersion, p.Node.Kind = "v1", "Node"
	return p, nil
}

// SampleRuntime asks the container runtime of cfg once. The error is about cfg; calls
// that failed are in the Snapshot.
func SampleRuntime(ctx context.Context, cfg Config) (*cri.Snapshot, error) {
	cfg = cfg.withDefaults()
	runtime, err := newRuntime(&cfg, nil, new(staged.Registry))
	if err != nil {
		return nil, err
	}
	defer runtime.Close()
	return runtime.Sample(ctx), nil
}

// sampleFor samples for a while, often enough for a trend.
func sampleFor(ctx context.Context, period time.Duration, sample func()) error {
	sample()
	const steps = 5
	for range steps {
		if period == 0 {
			break
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(period / steps):
		}
		sample()
	}
	return nil
}

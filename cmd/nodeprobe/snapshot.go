package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/status/node"
)

func newSnapshotCommand(p *paths) *cobra.Command {
	var file, output string
	var kubelet kubeletFiles
	var period time.Duration
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Sample the node; print what was found and the Node that would be posted",
		Long: `Sample the node; print what was found and the Node that would be posted.

It takes a second, as one sample does not tell how fast a limit comes near:
--for 0s takes just one. No cluster is needed. The exit code is 0 if everything
could be read, and 3 if not; what could be is printed in either case.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, policy, err := loadConfig(file, kubelet)
			if err != nil {
				return &exitError{exitUsage, err}
			}
			if period < 0 {
				return &exitError{exitUsage, fmt.Errorf("--for: %s is negative", period)}
			}
			policy.remarks.warn(cmd.ErrOrStderr())
			return snapshot(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &cfg, policy, *p, output, period)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration file; see nodeprobe config default")
	kubelet.addFlags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table, yaml or json")
	cmd.Flags().DurationVar(&period, "for", time.Second, "how long to watch the node, to tell the time to each limit")
	return cmd
}

// snapshotOutput is what snapshot prints as YAML and JSON.
type snapshotOutput struct {
	Snapshot view     `json:"snapshot"`
	Node     *v1.Node `json:"node"`
}

func snapshot(ctx context.Context, stdout, stderr io.Writer, cfg *config, p *policy, paths paths, output string, period time.Duration) error {
	if err := oneOf(output, "table", "yaml", "json"); err != nil {
		return &exitError{exitUsage, fmt.Errorf("--output: %w", err)}
	}
	sensor := bpf.Open(bpf.Options{Disabled: cfg.BPF == "off"})
	defer sensor.Close()
	sampler, err := probe.New(samplerConfig(cfg, paths, sensor, slog.New(slog.DiscardHandler), nil))
	if err != nil {
		return &exitError{exitUsage, err}
	}
	defer sampler.Close()
	monitor := newMonitor(cfg, p, sampler.Healthy, slog.New(slog.DiscardHandler), nil)
	if err := watch(ctx, sampler, monitor, period); err != nil {
		return err
	}
	facts := monitor.facts()
	runtime, err := sampleRuntime(ctx, cfg, paths)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	facts.Runtime = runtimeFacts(runtime, int(cfg.NodeStatusMaxImages))
	volumes, err := newVolumes(cfg, paths, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	inUse := volumes.Sample(ctx)
	facts.Volumes, facts.VolumeLimits = volumeFacts(inUse), &p.volumeLimits

	node, nodeErr := previewNode(ctx, cfg, p, facts)
	out := snapshotOutput{
		Snapshot: newView(&facts.Snapshot, facts.Verdicts[:], monitor.forecast(), sensor.Hooks()),
		Node:     node,
	}
	out.Snapshot.Errors = append(out.Snapshot.Errors, hookErrors(sensor.Hooks())...)
	out.Snapshot.Errors = append(out.Snapshot.Errors, runtimeErrors(runtime)...)
	if inUse.Err != nil {
		out.Snapshot.Errors = append(out.Snapshot.Errors, errorView{Source: "volumes", Error: inUse.Err.Error()})
	}
	if err := p.resources.Check(&facts.Snapshot.Capacity); err != nil {
		out.Snapshot.Errors = append(out.Snapshot.Errors, errorView{Source: "resources", Error: err.Error()})
	}
	// That the Node would lack something, such as an address on a machine
	// without a network, does not mean that the machine could not be read.
	incomplete := len(out.Snapshot.Errors) > 0
	if nodeErr != nil {
		out.Snapshot.Errors = append(out.Snapshot.Errors, errorView{Source: "node", Error: nodeErr.Error()})
	}
	if err := printSnapshot(stdout, &out, output); err != nil {
		return err
	}
	for _, err := range checkThresholds(p.thresholds, &facts.Snapshot) {
		fmt.Fprintf(stderr, "nodeprobe: %v\n", err)
	}
	if incomplete {
		return &exitError{exitIncomplete, errors.New("not everything could be read; see the errors in the output")}
	}
	return nil
}

// watch samples for a while, often enough for a trend.
func watch(ctx context.Context, sampler *probe.Sampler, monitor *monitor, period time.Duration) error {
	monitor.observe(sampler.Sample())
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
		monitor.observe(sampler.Sample())
	}
	return nil
}

// previewNode is the Node that own mode would create.
func previewNode(ctx context.Context, cfg *config, p *policy, facts node.Facts) (*v1.Node, error) {
	content := node.New(nodeConfig(cfg, p))
	content.Observe(facts)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // the node's name may have to be looked up
	defer cancel()
	initial, _, err := content.Initial(ctx, facts.Snapshot.Time)
	initial.APIVersion, initial.Kind = "v1", "Node"
	return initial, err
}

// sampleRuntime asks the container runtime once.
func sampleRuntime(ctx context.Context, cfg *config, paths paths) (*cri.Snapshot, error) {
	sampler, err := newRuntime(cfg, paths, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return nil, err
	}
	defer sampler.Close()
	return sampler.Sample(ctx), nil
}

// runtimeErrors returns an entry for each call that the container runtime did not
// answer.
func runtimeErrors(s *cri.Snapshot) []errorView {
	var views []errorView
	for c, read := range s.Reads {
		if read.Err != nil {
			views = append(views, errorView{
				Source: "runtime " + cri.Call(c).String(), Error: read.Err.Error(),
				Remedy: "check containerRuntimeEndpoint, and that the runtime runs and lets us connect",
			})
		}
	}
	return views
}

// hookErrors returns an entry for each kernel signal that is missing although
// BPF is wanted.
func hookErrors(hooks []bpf.Hook) []errorView {
	var views []errorView
	for _, h := range hooks {
		if !h.Attached && !errors.Is(h.Err, bpf.ErrDisabled) {
			views = append(views, errorView{Source: "bpf " + h.Signal.String(), Error: fmt.Sprintf("%s: %v", h.Name, h.Err), Remedy: h.Remedy})
		}
	}
	return views
}

func printSnapshot(w io.Writer, out *snapshotOutput, format string) error {
	var data []byte
	var err error
	switch format {
	case "yaml":
		data, err = yaml.Marshal(out)
	case "json":
		data, err = json.MarshalIndent(out, "", "  ")
		data = append(data, '\n')
	default:
		if err := writeTable(w, &out.Snapshot); err != nil {
			return err
		}
		return writeNodeSummary(w, out.Node)
	}
	if err != nil {
		return fmt.Errorf("encode snapshot: %w", err)
	}
	_, err = w.Write(data)
	return err
}

// writeNodeSummary prints the Node's capacity as kubectl describe does.
func writeNodeSummary(w io.Writer, node *v1.Node) error {
	fmt.Fprintf(w, "\nNode %s: %s, %s, kernel %s\n", node.Name, oneLine(node.Status.NodeInfo.OSImage, -1),
		node.Status.NodeInfo.Architecture, node.Status.NodeInfo.KernelVersion)
	for _, name := range slices.Sorted(maps.Keys(node.Status.Capacity)) {
		capacity, allocatable := node.Status.Capacity[name], node.Status.Allocatable[name]
		fmt.Fprintf(w, "  %-20s capacity %-14s allocatable %s\n", name, capacity.String(), allocatable.String())
	}
	_, err := fmt.Fprintln(w, "The whole of it: nodeprobe snapshot -o yaml")
	return err
}

package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/config"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/page"
)

func newSnapshotCommand(p *paths) *cobra.Command {
	var files config.Files
	var output string
	var period time.Duration
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Sample the node; print what was found and the Node that would be posted",
		Long: `Sample the node; print what was found and the Node that would be posted.

It takes a second, because one sample does not show that a limit approaches:
--for 0s takes just one, --for 1m finds what is slower. No cluster is needed. The
exit code is 0 if everything could be read, and 3 if not; the rest is printed in
either case.`,
		Args: usage(cobra.NoArgs),
	}
	addConfigFlags(cmd, &files)
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table, yaml or json")
	cmd.Flags().DurationVar(&period, "for", time.Second, "how long to watch the node, to estimate the time to each limit")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := config.Load(files)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		if err := oneOf(output, "table", "yaml", "json"); err != nil {
			return &exitError{exitUsage, fmt.Errorf("--output: %w", err)}
		}
		if period < 0 {
			return &exitError{exitUsage, fmt.Errorf("--for: %s is negative", period)}
		}
		printWarnings(cmd, loaded)
		return snapshot(cmd, loaded, *p, output, period)
	}
	return cmd
}

func snapshot(cmd *cobra.Command, loaded *config.Loaded, p paths, output string, period time.Duration) error {
	cfg := loaded.Agent
	cfg.Procfs, cfg.Sysfs, cfg.Rootfs, cfg.Version = p.procfs, p.sysfs, p.rootfs, version()
	preview, err := nodeprobe.NewPreview(cmd.Context(), cfg, period)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	out := page.NewSnapshot(&preview.State, preview.Node)
	out.AddError("volumes", preview.VolumesErr)
	out.AddError("resources", preview.ReservedErr)
	// That the Node would lack something, such as an address on a machine without a
	// network, does not mean that the machine could not be read.
	complete := out.Complete()
	out.AddError("node", preview.NodeErr)
	if err := out.Write(cmd.OutOrStdout(), output); err != nil {
		return err
	}
	for _, err := range nodeprobe.CheckThresholds(cfg.Thresholds, &preview.State.Snapshot) {
		fmt.Fprintf(cmd.ErrOrStderr(), "nodeprobe: %v\n", err)
	}
	if !complete {
		return &exitError{exitIncomplete, errors.New("not everything could be read; see the errors in the output")}
	}
	return nil
}

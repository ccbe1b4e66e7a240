package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/config"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/preflight"
)

func newPreflightCommand(p *paths) *cobra.Command {
	var files config.Files
	var output string
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Report what works on this machine, and how to fix what does not",
		Long: `Report what works on this machine, and how to fix what does not.

The exit code is 0 if everything works, and 3 if something is missing. Only a
line that says "fails" keeps nodeprobe from doing its work; one that says
"missing" costs the signal that it names, and "off" is turned off by configuration.`,
		Args: usage(cobra.NoArgs),
	}
	addConfigFlags(cmd, &files)
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := config.Load(files)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		if err := oneOf(output, "table", "json"); err != nil {
			return &exitError{exitUsage, fmt.Errorf("--output: %w", err)}
		}
		printWarnings(cmd, loaded)
		cfg := loaded.Agent
		cfg.Procfs, cfg.Sysfs, cfg.Rootfs = p.procfs, p.sysfs, p.rootfs
		findings, err := preflight.Check(cmd.Context(), &cfg, preflight.Process{
			DropCapabilities: loaded.DropCapabilities, LockedMemoryLimit: loaded.LockedMemoryLimit, OOMScoreAdj: loaded.OOMScoreAdj,
		})
		if err != nil {
			return &exitError{exitUsage, err}
		}
		if err := preflight.Print(cmd.OutOrStdout(), findings, output); err != nil {
			return err
		}
		if slices.ContainsFunc(findings, func(f preflight.Finding) bool { return f.Outcome != preflight.OK && f.Outcome != preflight.Off }) {
			return &exitError{exitIncomplete, errors.New("not everything works")}
		}
		return nil
	}
	return cmd
}

func logPaths(log *slog.Logger, cfg *nodeprobe.Config) {
	for _, f := range preflight.WrongPaths(cfg) {
		log.Warn("path does not lead to the node", "flag", f.What, "err", f.Detail, "remedy", f.Remedy)
	}
}

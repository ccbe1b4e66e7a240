package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/config"
)

func newCleanupCommand(p *paths) *cobra.Command {
	var files config.Files
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove the conditions that mode augment has put on the Node",
		Long: `Remove the conditions that mode augment has put on the Node.

It removes those that the API server records as written by nodeprobe, so those of
earlier configurations are among them. A kubelet's are never touched.`,
		Args: usage(cobra.NoArgs),
	}
	cmd.Flags().StringVar(&files.Own, "config", "", "configuration file; see nodeprobe config default")
	settings := addSettings(cmd, "kubeconfig", "hostname-override")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		files.Settings = settings()
		loaded, err := config.Load(files)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		loaded.Agent.Mode = nodeprobe.Augment // whose conditions these are
		cfg, err := agentConfig(loaded, *p)
		if err != nil {
			return err
		}
		ctx, stop := context.WithTimeout(cmd.Context(), 30*time.Second)
		defer stop()
		removed, err := nodeprobe.Cleanup(ctx, cfg)
		switch {
		case err != nil:
			return err
		case len(removed) == 0:
			fmt.Fprintf(cmd.OutOrStdout(), "node %s: no conditions of nodeprobe's\n", cfg.NodeName)
		default:
			fmt.Fprintf(cmd.OutOrStdout(), "node %s: removed %s\n", cfg.NodeName, strings.Join(removed, ", "))
		}
		return nil
	}
	return cmd
}

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeprobe/nodeprobe/status"
)

func newCleanupCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove the conditions that mode augment has put on the Node",
		Long: `Remove the conditions that mode augment has put on the Node.

Which they are is what the API server tells of who wrote them, so those of
earlier configurations are among them. A kubelet's are never touched.`,
		Args: usage(cobra.NoArgs),
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "config", "", "configuration file; see nodeprobe config default")
	settings := addOverrides(cmd, "kubeconfig", "hostname-override")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, policy, err := loadConfig(file, kubeletFiles{}, settings()...)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		client, err := newAPIClient(cfg.Kubeconfig, policy.nodeName, cfg.ImpersonateNode)
		if err != nil {
			return err
		}
		ctx, stop := context.WithTimeout(cmd.Context(), 30*time.Second)
		defer stop()
		removed, err := status.Cleanup(ctx, client.nodes, policy.nodeName, status.DefaultFieldManager)
		switch {
		case err != nil:
			return err
		case len(removed) == 0:
			fmt.Fprintf(cmd.OutOrStdout(), "node %s: no condition of ours\n", policy.nodeName)
		default:
			fmt.Fprintf(cmd.OutOrStdout(), "node %s: removed %s\n", policy.nodeName, strings.Join(removed, ", "))
		}
		return nil
	}
	return cmd
}

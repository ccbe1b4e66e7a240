package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/klog/v2"
)

// overrides are the flags of run that win over the configuration file.
type overrides struct {
	file, mode, nodeName, kubeconfig, listen, logLevel, logFormat string
}

func newRunCommand(p *paths) *cobra.Command {
	var o overrides
	table := "auto"
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Watch the node until told to stop",
		Args:  usage(cobra.NoArgs),
	}
	flags := cmd.Flags()
	flags.StringVar(&o.file, "config", "", "configuration file; see nodeprobe config default")
	flags.StringVar(&o.mode, "mode", "", "override mode: observe or own")
	flags.StringVar(&o.nodeName, "hostname-override", "", "override nodeName")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "override kubeconfig")
	flags.StringVar(&o.listen, "web.listen-address", "", "override webListenAddress")
	flags.StringVar(&o.logLevel, "log.level", "", "override logLevel")
	flags.StringVar(&o.logFormat, "log.format", "", "override logFormat")
	flags.StringVar(&table, "table", table, "show a live table: auto (in a terminal), on or off")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, policy, err := o.load()
		if err != nil {
			return &exitError{exitUsage, err}
		}
		stdout, ok := cmd.OutOrStdout().(*os.File)
		live := table == "on" || table == "auto" && ok && term.IsTerminal(int(stdout.Fd()))
		return runDaemon(cmd.Context(), &cfg, policy, *p, cmd, live)
	}
	return cmd
}

// load reads the configuration and applies the flags.
func (o *overrides) load() (config, *policy, error) {
	cfg, p, err := loadConfig(o.file)
	if err != nil {
		return cfg, p, err
	}
	changed := false
	for _, f := range []struct {
		target *string
		value  string
	}{
		{&cfg.Mode, o.mode}, {&cfg.NodeName, o.nodeName}, {&cfg.Kubeconfig, o.kubeconfig},
		{&cfg.WebListenAddress, o.listen}, {&cfg.LogLevel, o.logLevel}, {&cfg.LogFormat, o.logFormat},
	} {
		if f.value != "" {
			*f.target, changed = f.value, true
		}
	}
	if changed {
		var problems []problem
		p, problems = cfg.policy()
		err = joinProblems("flags", nil, problems)
	}
	return cfg, p, err
}

func runDaemon(ctx context.Context, cfg *config, p *policy, paths paths, cmd *cobra.Command, live bool) error {
	var screen *screen
	logs := cmd.ErrOrStderr()
	if live {
		screen = newScreen(cmd.OutOrStdout())
		logs = screen.logs()
	}
	log := newLogger(logs, cfg.LogFormat, p.logLevel)
	klog.SetSlogLogger(log) // client-go logs there
	for _, n := range p.notes {
		log.Info("configuration", "note", n.String())
	}
	var listener net.Listener
	if cfg.WebListenAddress != "" {
		var err error
		if listener, err = net.Listen("tcp", cfg.WebListenAddress); err != nil {
			return fmt.Errorf("serve metrics: %w", err)
		}
		defer listener.Close()
	}
	d, err := newDaemon(cfg, p, paths, log)
	if err != nil {
		return err
	}
	defer d.close()
	log.Info("nodeprobe is running", "version", release, "mode", cfg.Mode, "node", p.nodeName, "listen", cfg.WebListenAddress)
	if screen != nil {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		go screen.run(ctx, d, cfg, p)
	}
	if err := d.run(ctx, listener); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	log.Info("nodeprobe has stopped")
	return nil
}

func newLogger(w interface{ Write([]byte) (int, error) }, format string, level slog.Level) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

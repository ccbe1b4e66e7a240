package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/web"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// override is a flag of run that wins over the configuration file.
type override struct {
	flag, field, usage string
	target             func(*config) *string
}

// overrides lists them. The spellings are node_exporter's, the kubelet's and
// node-problem-detector's.
func overrides() []override {
	return []override{
		{"mode", "mode", "override mode: observe, augment or own", func(c *config) *string { return &c.Mode }},
		{"hostname-override", "nodeName", "override nodeName", func(c *config) *string { return &c.NodeName }},
		{"kubeconfig", "kubeconfig", "override kubeconfig", func(c *config) *string { return &c.Kubeconfig }},
		{"web.listen-address", "webListenAddress", `override webListenAddress; "" turns it off`, func(c *config) *string { return &c.WebListenAddress }},
		{"web.config.file", "webConfigFile", "override webConfigFile: TLS and users", func(c *config) *string { return &c.WebConfigFile }},
		{"web.health-listen-address", "webHealthListenAddress", "override webHealthListenAddress: /livez and /readyz alone, plain HTTP", func(c *config) *string { return &c.WebHealthListenAddress }},
		{"log.level", "logLevel", "override logLevel", func(c *config) *string { return &c.LogLevel }},
		{"log.format", "logFormat", "override logFormat", func(c *config) *string { return &c.LogFormat }},
	}
}

// addOverrides adds flags, those of the names or all, and returns what gives the
// settings of those that are on the command line: "" is a value too.
func addOverrides(cmd *cobra.Command, names ...string) func() []setting {
	flags := cmd.Flags()
	var added []override
	for _, o := range overrides() {
		if len(names) == 0 || slices.Contains(names, o.flag) {
			added = append(added, o)
			flags.String(o.flag, "", o.usage)
		}
	}
	return func() (settings []setting) {
		for _, o := range added {
			if f := flags.Lookup(o.flag); f.Changed {
				settings = append(settings, setting{flag: o.flag, field: o.field, value: f.Value.String(), target: o.target})
			}
		}
		return settings
	}
}

func newRunCommand(p *paths) *cobra.Command {
	var file, table string
	var profiling bool
	var kubelet kubeletFiles
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Watch the node until told to stop",
		Long: `Watch the node until told to stop.

SIGINT and SIGTERM end it with exit code 0; a second one ends it at once. SIGHUP
reloads the configuration, unless there is a live table. Flags win over the
configuration file, and that over a kubelet's.`,
		Args: usage(cobra.NoArgs),
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "config", "", "configuration file; see nodeprobe config default")
	kubelet.addFlags(cmd)
	settings := addOverrides(cmd)
	flags.BoolVar(&profiling, "web.enable-pprof", false, "serve Go's profiles of this process at /debug/pprof/")
	flags.StringVar(&table, "table", "auto", "show a live table: auto (in a terminal), on or off")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := oneOf(table, "auto", "on", "off"); err != nil {
			return &exitError{exitUsage, fmt.Errorf("--table: %w", err)}
		}
		files := configFiles{own: file, kubelet: kubelet, settings: settings()}
		cfg, policy, err := files.load(new(deadline.Worker[loadedConfig]))
		if err != nil {
			return &exitError{exitUsage, err}
		}
		live := table == "on" || table == "auto" && isTerminal(cmd.OutOrStdout())
		return runDaemon(cmd, &cfg, policy, *p, files, live, profiling)
	}
	return cmd
}

func runDaemon(cmd *cobra.Command, cfg *config, p *policy, paths paths, files configFiles, live, profiling bool) error {
	makeThreads(spareThreads + runtime.GOMAXPROCS(0))
	ctx, logs := cmd.Context(), cmd.ErrOrStderr()
	var screen *screen
	if live {
		screen = newScreen(cmd.OutOrStdout())
		logs = screen.logs()
	}
	level := new(slog.LevelVar)
	level.Set(p.logLevel)
	log := newLogger(logs, cfg.LogFormat, level)
	klog.SetSlogLogger(slog.New(chatter{log.Handler()})) // client-go logs there
	logNotes(log, p)
	server, err := web.New(ctx, web.Config{
		Listen: cfg.WebListenAddress, HealthListen: cfg.WebHealthListenAddress, File: cfg.WebConfigFile, Pprof: profiling,
	}, log)
	if err != nil {
		if wrong, ok := errors.AsType[*web.FileError](err); ok {
			return &exitError{exitUsage, wrong}
		}
		return err
	}
	defer server.Close()
	d, err := newDaemon(cfg, p, paths, log)
	if err != nil {
		return err
	}
	defer d.close()
	logPaths(log, paths)
	if err := relax(); err != nil {
		log.Debug("timers are not put off", "err", err)
	}
	if cfg.DropCapabilities {
		d.dropPrivileges()
	}
	d.reloader = newReloader(d, files, cfg, level, d.registry)
	if !live { // or else it is the terminal that is gone
		defer d.reloader.onHangup()()
	}
	d.routes = append(d.routes, route{"GET /configz", configz(cfg, p.nodeName)})
	d.registry.MustRegister(server)
	log.Info("nodeprobe is running", "version", release, "mode", cfg.Mode, "node", p.nodeName, "listen", server.Address())
	if screen != nil {
		stop := screen.start(func(w io.Writer) { d.writeScreen(w, server.URL()) }, func() { d.sampler.Wake(probe.CauseView) })
		defer stop()
	}
	if err := d.run(ctx, server); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	log.Info("nodeprobe has stopped")
	return nil
}

// logNotes says what is worth knowing about a configuration.
func logNotes(log *slog.Logger, p *policy) {
	for _, n := range p.notes {
		log.Info("configuration", "note", n.String())
	}
	for _, r := range p.remarks {
		log.Log(context.Background(), r.level, "kubelet configuration", "note", r.String())
	}
}

func newLogger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// chatter passes on at level debug what is not below it. client-go logs errors
// that it returns as well, at each retry; the writers log each of them once. Far
// below are the bodies of all requests and answers, which take longer to write
// down than to make.
type chatter struct{ slog.Handler }

func (c chatter) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelDebug && c.Handler.Enabled(ctx, slog.LevelDebug)
}

func (c chatter) Handle(ctx context.Context, r slog.Record) error {
	if !c.Enabled(ctx, slog.LevelDebug) {
		return nil // errors come without the question
	}
	r.Level = slog.LevelDebug
	return c.Handler.Handle(ctx, r)
}

func (c chatter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return chatter{c.Handler.WithAttrs(attrs)}
}

func (c chatter) WithGroup(name string) slog.Handler { return chatter{c.Handler.WithGroup(name)} }

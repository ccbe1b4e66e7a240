package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/config"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/kube"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/page"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/process"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/web"
	"github.com/nodeprobe/nodeprobe/internal/once"
	"github.com/nodeprobe/nodeprobe/probe"
)

// runOptions are the flags of run that are not in the configuration.
type runOptions struct {
	paths
	table string
	pprof bool
}

func newRunCommand(p *paths) *cobra.Command {
	var files config.Files
	var opts runOptions
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Watch the node until stopped",
		Long: `Watch the node until stopped.

SIGINT and SIGTERM end it with exit code 0; a second one ends it at once. SIGHUP
reloads the configuration, unless there is a live table. Flags win over the
configuration file, and that over a kubelet's.`,
		Args: usage(cobra.NoArgs),
	}
	flags := cmd.Flags()
	addConfigFlags(cmd, &files)
	settings := addSettings(cmd)
	flags.BoolVar(&opts.pprof, "web.enable-pprof", false, "serve Go's profiles of this process at /debug/pprof/")
	flags.StringVar(&opts.table, "table", "auto", "show a live table: auto (in a terminal), on or off")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := oneOf(opts.table, "auto", "on", "off"); err != nil {
			return &exitError{exitUsage, fmt.Errorf("--table: %w", err)}
		}
		opts.paths, files.Settings = *p, settings()
		loader := &loader{files: files}
		loaded, err := loader.load()
		if err != nil {
			return &exitError{exitUsage, err}
		}
		return runAgent(cmd, loader, loaded, opts)
	}
	return cmd
}

// runAgent runs an agent, and everything that a daemon has around it.
func runAgent(cmd *cobra.Command, loader *loader, loaded *config.Loaded, opts runOptions) error {
	started := time.Now()
	ctx := cmd.Context()
	var screen *page.Screen
	logs := newLogWriter(cmd.ErrOrStderr(), loaded.LogFormat)
	defer logs.Flush(flushTimeout)
	level := new(slog.LevelVar)
	level.Set(loaded.LogLevel)
	lines := io.Writer(logs)
	if opts.table == "on" || opts.table == "auto" && page.IsTerminal(cmd.OutOrStdout()) {
		screen = page.NewScreen(cmd.OutOrStdout())
		lines = screen.Logs()
	} else {
		surviveClosedPipe()
	}
	log := once.Logger(newLogger(lines, loaded.LogFormat, level))
	kube.LogAtDebug(log)
	if err := process.KeepThreads(process.SpareThreads + runtime.GOMAXPROCS(0)); err != nil {
		log.Warn("cannot start spare threads", "err", err)
	}
	logRemarks(log, loaded.Remarks)
	process.SpareFromOOM(loaded.OOMScoreAdj, log)

	server, err := web.New(ctx, webConfig(loaded, opts.pprof), log)
	if err != nil {
		return webError(err)
	}
	defer server.Close()
	registry := prometheus.NewRegistry()
	memory := process.NewMemory(process.BoundLock(loaded.LockedMemoryLimit, log), log)
	registry.MustRegister(process.NewCollector(started), logs.Collector(), memory, buildInfo(), server)

	d := &daemon{log: log, registry: registry, running: make(chan struct{})}
	d.settler = process.NewSettler(process.SettlerConfig{
		Memory: memory, Rehearse: func(ctx context.Context) error { return d.rehearse(ctx, server) }, Ready: d.ready, Logger: log,
	})
	cfg, err := agentConfig(loaded, opts.paths)
	if err != nil {
		return err
	}
	cfg.Logger, cfg.Registerer = log, registry
	cfg.OnSample, cfg.OnReconnect = d.sampled, d.settler.Reconnected
	if d.agent, err = nodeprobe.New(cfg); err != nil {
		return err
	}
	defer d.agent.Close()
	loaded.Agent = cfg // a reload keeps what no file has
	d.supervisor = process.NewSupervisor(process.SupervisorConfig{Alive: d.alive, Status: d.statusLine, Logger: log})
	d.reloader = newReloader(reloaderConfig{
		loader: loader, loaded: loaded, apply: d.agent.Reload, level: level, supervisor: d.supervisor, log: log,
	}, registry)
	if screen == nil { // otherwise SIGHUP means that the terminal is gone
		defer d.reloader.onHangup()()
	}
	logPaths(log, &cfg)
	if err := process.RelaxTimers(); err != nil {
		log.Debug("cannot set timer slack", "err", err)
	}
	if loaded.DropCapabilities {
		process.DropPrivileges(d.agent.RearmBPF, loaded.LockedMemoryLimit > 0, log)
	}
	log.Info("nodeprobe is running", "version", release, "mode", string(cfg.Mode), "node", cfg.NodeName,
		"listen", server.Address(), "healthListen", server.HealthAddress())
	d.page = page.New(page.Config{Version: release, State: d.agent.State, Sample: d.agent.Sample, Memory: memory.State, History: &d.history})
	if screen != nil {
		defer screen.Start(d.page, server.URL())()
	}
	if err := d.run(ctx, server); err != nil && !errors.Is(err, context.Canceled) {
		if errors.Is(err, nodeprobe.ErrOccupied) {
			return &exitError{exitOccupied, err}
		}
		return err
	}
	log.Info("nodeprobe has stopped")
	return nil
}

// daemon is an agent and what is around it.
type daemon struct {
	agent      *nodeprobe.Agent
	page       *page.Page
	history    page.History
	supervisor *process.Supervisor
	reloader   *reloader
	settler    *process.Settler
	registry   *prometheus.Registry
	log        *slog.Logger

	running chan struct{} // closed by the first sample that the agent acts on
	looked  time.Time     // at the configuration's files; owned by sampled
}

// lookInterval is how often the configuration's files are looked at.
const lookInterval = time.Minute

// sampled is called with each sample, by the goroutine that samples.
func (d *daemon) sampled(s *probe.Snapshot) {
	if d.looked.IsZero() {
		d.looked = s.Time
		close(d.running)
	}
	d.history.Observe(s)
	d.supervisor.Wake()
	if s.Time.Sub(d.looked) >= lookInterval {
		d.looked = s.Time
		d.reloader.look()
	}
}

// run runs everything until ctx ends or something fails. The agent is the first: it may
// refuse to run.
func (d *daemon) run(ctx context.Context, server *web.Server) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return d.agent.Run(ctx) })
	for _, run := range []func(context.Context) error{
		func(ctx context.Context) error { return server.Run(ctx, d.routes()) },
		d.reloader.Run, d.supervisor.Run, d.settler.Run,
	} {
		tasks.Go(func() error {
			select {
			case <-d.running:
				return run(ctx)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}
	return tasks.Wait()
}

// routes are what is served, besides profiles.
func (d *daemon) routes() web.Routes {
	errorLog := slog.NewLogLogger(d.log.Handler(), slog.LevelDebug)
	metrics := promhttp.HandlerFor(d.registry, promhttp.HandlerOpts{
		EnableOpenMetrics: true, Registry: d.registry, ErrorLog: errorLog,
		DisableCompression: true, // of 20 KB, by what takes 0.8 MB of heap
	})
	routes := d.page.Routes()
	maps.Copy(routes, d.page.HealthRoutes())
	routes["GET /metrics"] = metrics
	routes["GET /configz"] = configz(d.reloader.current.Load)
	return routes
}

// alive returns why the process should be restarted, or nil.
func (d *daemon) alive() error {
	s := d.agent.State()
	return s.Alive()
}

// ready returns why the agent's work does not reach where it should, or nil.
func (d *daemon) ready() error {
	s := d.agent.State()
	return s.IsReady()
}

// statusLine is what "systemctl status" shows.
func (d *daemon) statusLine() string {
	s := d.agent.State()
	if d.reloader.refused() {
		return page.StatusLine(&s, "the configuration is refused, see the log")
	}
	return page.StatusLine(&s)
}

// configz responds with the configuration in force, as a kubelet does: files, flags and
// defaults together.
func configz(current func() *config.Loaded) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		body, err := json.Marshal(map[string]any{"nodeprobeconfig": current().Fields()})
		if err != nil { // every field can be encoded
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(append(body, '\n')) // the client may be gone
	})
}

package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/exporter-toolkit/web"
	"golang.org/x/sync/errgroup"
)

// Config says where and how to serve.
type Config struct {
	Listen       string // address for all routes; "" for none
	HealthListen string // address for /livez and /readyz alone, over plain HTTP; "" for none
	File         string // TLS, users and headers, in the exporters' format; "" for plain HTTP
	Pprof        bool   // serve /debug/pprof/
}

// Routes are handlers by their pattern for an [http.ServeMux].
type Routes map[string]http.Handler

// Server serves on the addresses of a Config. It is a prometheus.Collector of its own
// metrics.
type Server struct {
	log          *slog.Logger
	main, health net.Listener // nil for none
	file         *file        // nil for none
	limit        *connLimit   // of both listeners
	pprof        bool
}

// New reads the web configuration file and binds the addresses. The error is a
// *FileError if the file is wrong. The caller closes the Server.
func New(ctx context.Context, cfg Config, log *slog.Logger) (*Server, error) {
	s := &Server{log: log, limit: newConnLimit(maxConnections), pprof: cfg.Pprof}
	if err := s.open(ctx, cfg); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Server) open(ctx context.Context, cfg Config) (err error) {
	if cfg.File != "" && cfg.Listen != "" {
		if s.file, err = openFile(cfg.File, cfg.HealthListen == "", s.log); err != nil {
			return err
		}
	}
	for _, bind := range []struct {
		name, address string
		listener      *net.Listener
	}{
		{"webListenAddress (--web.listen-address)", cfg.Listen, &s.main},
		{"webHealthListenAddress (--web.health-listen-address)", cfg.HealthListen, &s.health},
	} {
		if bind.address == "" {
			continue
		}
		if *bind.listener, err = listen(ctx, bind.address); err != nil {
			return fmt.Errorf("%s: %w", bind.name, err)
		}
	}
	return nil
}

// Close frees the addresses. It is safe to call more than once, and after Run.
func (s *Server) Close() {
	for _, l := range []net.Listener{s.main, s.health} {
		if l != nil {
			_ = l.Close() // an error means that it is closed already
		}
	}
	if s.file != nil {
		s.file.close()
	}
}

// Address returns the bound address of all routes, "" for none.
func (s *Server) Address() string { return address(s.main) }

// URL returns where the first of the routes is, "" for nowhere.
func (s *Server) URL() string {
	switch {
	case s.main == nil:
		return ""
	case s.file != nil && s.file.current().TLSConfig.IsEnabled():
		return "https://" + s.Address() + "/"
	}
	return "http://" + s.Address() + "/"
}

// HealthAddress returns the bound address of the health endpoints alone, "" for none.
func (s *Server) HealthAddress() string { return address(s.health) }

func address(l net.Listener) string {
	if l == nil {
		return ""
	}
	return l.Addr().String()
}

// Describe implements prometheus.Collector.
func (s *Server) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, ch) }

// Collect implements prometheus.Collector.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	s.limit.Collect(ch)
	if s.file != nil {
		s.file.good.Collect(ch)
	}
}

// Run serves until ctx ends, or a listener fails. Requests under way then have a few
// seconds to finish.
func (s *Server) Run(ctx context.Context, routes Routes) error {
	if s.pprof {
		routes = maps.Clone(routes)
		maps.Copy(routes, pprofRoutes())
	}
	tasks, ctx := errgroup.WithContext(ctx)
	if s.main != nil {
		server := s.newServer(routes.Handler())
		tasks.Go(func() error { return s.runMain(ctx, server) })
	}
	if s.health != nil {
		server := s.newServer(s.healthHandler(routes))
		tasks.Go(func() error {
			return serve(ctx, server, s.health, func() error { return server.Serve(s.health) })
		})
	}
	tasks.Go(func() error { <-ctx.Done(); return context.Cause(ctx) })
	return tasks.Wait()
}

// runMain has the toolkit run the server of all routes.
func (s *Server) runMain(ctx context.Context, server *http.Server) error {
	path, listener := "", s.main
	if s.file != nil {
		path = s.file.copied()
		g := newGate(s.file, server.Handler)
		server.Handler = g.entered()
		server.ConnState = func(conn net.Conn, state http.ConnState) {
			s.limit.changed(conn, state)
			if state == http.StateNew {
				s.file.current() // the handshake is next
			}
		}
		listener = &lateListener{Listener: s.main, first: func() { server.Handler = g.before(server.Handler) }}
	}
	return serve(ctx, server, s.main, func() error {
		return web.Serve(listener, server, &web.FlagConfig{WebConfigFile: &path}, s.log)
	})
}

// lateListener calls first before it accepts for the first time. By then the toolkit has
// wrapped the server's handler, and no request has come: what is to see requests before
// the toolkit does is put in then.
type lateListener struct {
	net.Listener
	first func()
}

// Accept implements net.Listener. Only one goroutine calls it.
func (l *lateListener) Accept() (net.Conn, error) {
	if l.first != nil {
		l.first()
		l.first = nil
	}
	return l.Listener.Accept()
}

// newServer bounds what a client can cost.
func (s *Server) newServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second, // of a body, too, that no route reads
		WriteTimeout:      turnTimeout + 15*time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		// A connection of HTTP/2 is to cost no more than several of HTTP/1.
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 2, MaxReadFrameSize: 16 << 10,
			MaxReceiveBufferPerConnection: 64 << 10, MaxReceiveBufferPerStream: 16 << 10,
		},
		ConnState: s.limit.changed, ConnContext: s.limit.context,
		// A client that goes away is not worth more than a line at level debug.
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// serve runs start, which serves on listener, until ctx ends.
func serve(ctx context.Context, server *http.Server, listener net.Listener, start func() error) error {
	failed := make(chan error, 1)
	go func() { failed <- start() }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	err := server.Shutdown(stopCtx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = server.Close()
	}
	if err != nil {
		return fmt.Errorf("stop serving %s: %w", listener.Addr(), err)
	}
	return context.Cause(ctx)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// check is one named part of a health endpoint.
type check struct {
	name string
	run  func() error
}

// newServer serves /metrics and the health endpoints. /livez says whether the
// process does its work, /readyz whether that work reaches where it should.
func newServer(reg *prometheus.Registry, live, ready []check, log *slog.Logger, more ...route) *http.Server {
	// A client that goes away is not worth more than a line at level debug.
	errorLog := slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	mux := http.NewServeMux()
	answers := newAnswers()
	mux.Handle("GET /metrics", answers.whole(promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		EnableOpenMetrics: true, Registry: reg, ErrorLog: errorLog,
	})))
	mux.Handle("GET /livez", health("livez", live))
	mux.Handle("GET /healthz", health("healthz", live))
	mux.Handle("GET /readyz", health("readyz", ready))
	for _, r := range more {
		h := r.handler
		if !strings.Contains(r.pattern, pprofPath) { // they take their time
			h = answers.whole(h)
		}
		mux.Handle(r.pattern, h)
	}
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second, // of a body, too, that nobody here wants
		WriteTimeout:      turnTimeout + 15*time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		// A connection of HTTP/2 is to cost no more than several of HTTP/1.
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 2, MaxReadFrameSize: 16 << 10,
			MaxReceiveBufferPerConnection: 64 << 10, MaxReceiveBufferPerStream: 16 << 10,
		},
		ErrorLog: errorLog,
	}
	newConnLimit(maxConnections, reg).guard(server)
	return server
}

// health answers as the API server's endpoints do: "ok", or each check's
// outcome where one failed or ?verbose asks for it.
func health(name string, checks []check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var b strings.Builder
		failed := false
		for _, c := range checks {
			if err := c.run(); err != nil {
				failed = true
				fmt.Fprintf(&b, "[-]%s failed: %v\n", c.name, err)
				continue
			}
			fmt.Fprintf(&b, "[+]%s ok\n", c.name)
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		switch {
		case failed:
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintf(w, "%s%s check failed\n", b.String(), name)
		case r.URL.Query().Has("verbose"):
			fmt.Fprintf(w, "%s%s check passed\n", b.String(), name)
		default:
			fmt.Fprint(w, "ok")
		}
	})
}

// serve serves on listener until ctx ends. Requests may finish then, but not take
// their time.
func serve(ctx context.Context, server *http.Server, listener net.Listener) error {
	failed := make(chan error, 1)
	go func() {
		if server.TLSConfig != nil {
			failed <- server.ServeTLS(listener, "", "")
			return
		}
		failed <- server.Serve(listener)
	}()
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

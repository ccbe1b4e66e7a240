package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/web"
)

// check is one named part of a health endpoint.
type check struct {
	name string
	run  func() error
}

// serves are all routes, but for profiles. /livez is whether the process does its work,
// /readyz whether that work reaches where it should.
func (d *daemon) serves() web.Routes {
	routes := web.Routes{
		"GET /metrics": promhttp.HandlerFor(d.registry, promhttp.HandlerOpts{
			EnableOpenMetrics: true, Registry: d.registry,
			// A client that goes away is not worth more than a line at level debug.
			ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelDebug),
		}),
		"GET /livez":   health("livez", d.liveChecks()),
		"GET /healthz": health("healthz", d.liveChecks()),
		"GET /readyz":  health("readyz", d.readyChecks()),
	}
	for _, r := range append(d.pageRoutes(), d.routes...) {
		routes[r.pattern] = r.handler
	}
	return routes
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

package page

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/internal/printable"
)

// HealthRoutes returns the handlers of the health endpoints, by [http.ServeMux] pattern:
// /livez and /healthz for State.Live, /readyz for State.Ready.
func (p *Page) HealthRoutes() map[string]http.Handler {
	return map[string]http.Handler{
		"GET /livez":   p.health("livez", live),
		"GET /healthz": p.health("healthz", live),
		"GET /readyz":  p.health("readyz", ready),
	}
}

func live(s *nodeprobe.State) []nodeprobe.Check  { return s.Live }
func ready(s *nodeprobe.State) []nodeprobe.Check { return s.Ready }

// health responds as the API server's health endpoints do: "ok", or the result of
// every check if one failed or ?verbose is given.
func (p *Page) health(name string, checks func(*nodeprobe.State) []nodeprobe.Check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		state := p.State()
		var b strings.Builder
		failed := false
		for _, c := range checks(&state) {
			if c.Err != nil {
				failed = true
				fmt.Fprintf(&b, "[-]%s failed: %v\n", c.Name, c.Err)
				continue
			}
			fmt.Fprintf(&b, "[+]%s ok\n", c.Name)
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

// maxStatusLine is in runes.
const maxStatusLine = 600

// StatusLine is what "systemctl status" shows: the mode, the conditions and the
// checks that fail, and then the notes.
func StatusLine(s *nodeprobe.State, notes ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "mode %s, node %s:", s.Mode, s.NodeName)
	for _, v := range s.Verdicts {
		fmt.Fprintf(&b, " %s=%s", v.Condition, v.Status)
	}
	for _, c := range s.Ready {
		if c.Err != nil {
			fmt.Fprintf(&b, "; %s: %v", c.Name, c.Err)
		}
	}
	for _, note := range notes {
		b.WriteString("; " + note)
	}
	return printable.Line(b.String(), maxStatusLine)
}

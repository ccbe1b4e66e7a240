package main

import (
	"crypto/sha256"
	_ "embed" // the page's style and script
	"encoding/base64"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

var (
	//go:embed page/page.css
	pageStyle string
	//go:embed page/page.js
	pageScript string
)

// route is something to serve.
type route struct {
	pattern string
	handler http.Handler
}

// pageRoutes serve the status page, and what is on it as JSON.
func (d *daemon) pageRoutes() []route {
	return []route{
		{"GET /{$}", http.HandlerFunc(d.servePage)},
		{"GET /api/v1/status", http.HandlerFunc(d.serveStatus)},
		{"GET /api/v1/history", http.HandlerFunc(d.serveHistory)},
	}
}

// pagePolicy lets a browser run the page's own style and script and nothing else,
// wherever a name or an error text may come from.
var pagePolicy = sync.OnceValue(func() string {
	hash := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return "default-src 'none'; style-src " + hash(pageStyle) + "; script-src " + hash(pageScript) +
		"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
})

// current is a report for somebody who looks, and who will look again: a sample
// that is old is replaced by then. Before the first it answers the request.
func (d *daemon) current(w http.ResponseWriter) (r report, ok bool) {
	now := time.Now()
	if r, ok = d.report(now); !ok {
		http.Error(w, "no sample yet", http.StatusServiceUnavailable)
		return report{}, false
	}
	if now.Sub(d.monitor.facts().Snapshot.Time) >= screenPeriod {
		d.sampler.Wake(probe.CauseView)
	}
	r.Snapshot.Errors = append(r.Snapshot.Errors, hookErrors(d.sensor.Hooks())...)
	return r, true
}

func (d *daemon) servePage(w http.ResponseWriter, _ *http.Request) {
	r, ok := d.current(w)
	if !ok {
		return
	}
	header := w.Header()
	protect(header, "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", pagePolicy())
	var m markup
	m.page(&r, d.monitor.past())
	_, _ = w.Write(m.buf.Bytes()) // a client that goes away is none of our business
}

func (d *daemon) serveStatus(w http.ResponseWriter, _ *http.Request) {
	if r, ok := d.current(w); ok {
		serveJSON(w, &r, "  ")
	}
}

func (d *daemon) serveHistory(w http.ResponseWriter, _ *http.Request) {
	v := newHistoryView(d.monitor.past())
	serveJSON(w, &v, "")
}

func serveJSON(w http.ResponseWriter, v any, indent string) {
	protect(w.Header(), "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false) // it is none
	encoder.SetIndent("", indent)
	_ = encoder.Encode(v) // of values that have a JSON form, to a client that may be gone
}

// protect keeps an answer from being stored, guessed at, or shown by other sites.
func protect(header http.Header, kind string) {
	header.Set("Content-Type", kind)
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Referrer-Policy", "no-referrer")
}

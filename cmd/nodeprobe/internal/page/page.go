// Package page is what people look at: the status page and its JSON, the health
// endpoints, the live table in a terminal, and the output of "nodeprobe snapshot".
// All of it is made from a [nodeprobe.State]; only [History] remembers anything.
//
// The status page loads nothing from elsewhere, works without JavaScript, and works
// behind a proxy that adds a prefix to the path. A request for it, or for /api/v1/status,
// asks for a sample if the latest is older than a second; the next request shows it.
//
// In /api/v1/history each column has one entry per time, about five seconds apart. An
// entry is the worst from that time until the next: of each signal the least that was
// available, and of each stall the largest share of ten seconds. It is null if the figure
// could not be read.
package page

import (
	"crypto/sha256"
	_ "embed" // the page's style and script
	"encoding/base64"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/process"
)

var (
	//go:embed page.css
	pageStyle string
	//go:embed page.js
	pageScript string
)

// Config is what a [Page] is made from. Every field is required.
type Config struct {
	// Version is the program's.
	Version string
	// State returns the current state, such as [nodeprobe.Agent.State].
	State func() nodeprobe.State
	// Sample asks for a sample soon, because the page is being looked at. It must not block.
	Sample func()
	// Memory returns what of this process is locked, such as [process.Memory.State].
	Memory func() process.MemoryState
	// History holds the last ten minutes.
	History *History
}

// Page shows the state of an agent. It is safe for concurrent use.
type Page struct{ Config }

// New returns a Page.
func New(cfg Config) *Page { return &Page{cfg} }

// Routes returns the handlers of the status page and of its data as JSON, by
// [http.ServeMux] pattern.
func (p *Page) Routes() map[string]http.Handler {
	return map[string]http.Handler{
		"GET /{$}":            http.HandlerFunc(p.servePage),
		"GET /api/v1/status":  http.HandlerFunc(p.serveStatus),
		"GET /api/v1/history": http.HandlerFunc(p.serveHistory),
	}
}

// pagePolicy lets a browser run the page's own style and script and nothing else,
// whatever a name or an error text contains.
var pagePolicy = sync.OnceValue(func() string {
	hash := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return "default-src 'none'; style-src " + hash(pageStyle) + "; script-src " + hash(pageScript) +
		"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
})

// lookPeriod is how often a page and a live table are drawn again. A sample older
// than that is out of date for a viewer.
const lookPeriod = time.Second

// current returns the report for a request. A viewer will look again: if the
// sample is old, a new one is taken by then. Before the first sample it responds with
// an error itself.
func (p *Page) current(w http.ResponseWriter) (r report, ok bool) {
	now, state := time.Now(), p.State()
	if state.Snapshot.Time.IsZero() {
		http.Error(w, "no sample yet", http.StatusServiceUnavailable)
		return report{}, false
	}
	if now.Sub(state.Snapshot.Time) >= lookPeriod {
		p.Sample()
	}
	r = p.report(&state, now)
	r.Snapshot.Errors = append(r.Snapshot.Errors, hookErrors(state.Hooks)...)
	return r, true
}

func (p *Page) servePage(w http.ResponseWriter, _ *http.Request) {
	r, ok := p.current(w)
	if !ok {
		return
	}
	header := w.Header()
	protect(header, "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", pagePolicy())
	var m markup
	m.page(&r, p.History.points())
	_, _ = w.Write(m.buf.Bytes()) // the client may be gone
}

func (p *Page) serveStatus(w http.ResponseWriter, _ *http.Request) {
	if r, ok := p.current(w); ok {
		serveJSON(w, &r, "  ")
	}
}

func (p *Page) serveHistory(w http.ResponseWriter, _ *http.Request) {
	v := newHistoryView(p.History.points())
	serveJSON(w, &v, "")
}

func serveJSON(w http.ResponseWriter, v any, indent string) {
	protect(w.Header(), "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	_ = encoder.Encode(v) // every v can be encoded, and the client may be gone
}

// protect keeps a response from being cached, sniffed, or embedded by other sites.
func protect(header http.Header, contentType string) {
	header.Set("Content-Type", contentType)
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Referrer-Policy", "no-referrer")
}

package rehearsal

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nodeprobe/nodeprobe/internal/apiclient"
	"github.com/nodeprobe/nodeprobe/status"
)

// apiServer stores nothing: it has one Node, neither Lease nor Event, and answers each
// write with what it was sent.
type apiServer struct {
	mu       sync.Mutex // guards the rest
	requests []string   // method, path and body; with "read", "watch" or "dry run" in front
	refuse   string     // why no dry run is taken; "" for taking them
}

var node = v1.Node{
	TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
	ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid", ResourceVersion: "1"},
}

// ServeHTTP implements http.Handler.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	kind, query := "", r.URL.Query()
	switch {
	case r.Method == http.MethodGet && query.Get("watch") == "":
		kind = "read "
	case query.Get("watch") == "true":
		kind = "watch "
	case query.Get("dryRun") == metav1.DryRunAll:
		kind = "dry run "
	}
	s.mu.Lock()
	s.requests = append(s.requests, kind+r.Method+" "+r.URL.Path+" "+string(body))
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case kind == "dry run " && s.refuse != "":
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusFailure, Reason: metav1.StatusReasonBadRequest, Code: http.StatusBadRequest, Message: s.refuse,
		})
	case kind == "watch ":
		_ = json.NewEncoder(w).Encode(map[string]any{"type": "ADDED", "object": node})
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case strings.HasPrefix(r.URL.Path, "/api/v1/nodes"):
		answer := node.DeepCopy()
		if r.Method == http.MethodPatch {
			_ = json.Unmarshal(body, answer)
		}
		_ = json.NewEncoder(w).Encode(answer)
	case r.Method == http.MethodGet, r.Method == http.MethodPatch:
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	default:
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.Write(body)
	}
}

// with returns the requests that contain all of these words.
func (s *apiServer) with(words ...string) (found []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(r, word) }) {
			found = append(found, r)
		}
	}
	return found
}

// newWriters makes writers of a content.
func newWriters(t *testing.T, content status.Content, allow func() error) (*Writers, *apiServer) {
	t.Helper()
	s := &apiServer{}
	server := httptest.NewServer(s)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	w, err := NewWriters(Config{
		API:          apiclient.Config{API: &rest.Config{Host: server.URL}, NodeName: "n", UserAgent: "nodeprobe/1", OnReconnect: func() {}},
		FieldManager: "nodeprobe", Content: content, Allow: allow, Component: "rehearsing",
		Timeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w, s
}

func healthy() error { return nil }

func disk(state v1.ConditionStatus) []status.Condition {
	return []status.Condition{{Type: "example.com/Disk", Status: state, Reason: "Rehearsed"}}
}

// Whatever an agent writes, the writers write as a dry run, through every failure that
// there is, and they watch the Node.
func TestWriters(t *testing.T) {
	content := status.NewConditions("nodeprobe")
	content.Set(disk(v1.ConditionFalse))
	w, api := newWriters(t, content, healthy)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.Post(ctx, func() { content.Set(disk(v1.ConditionTrue)) }); err != nil {
		t.Error(err)
	}
	if err := w.Heartbeat(ctx, healthy); err != nil {
		t.Error(err)
	}
	for _, want := range [][]string{
		{"dry run PATCH /api/v1/nodes/n/status", "example.com/Disk", `"status":"True"`},
		{"dry run PATCH /api/v1/nodes/n/status", "example.com/Disk", `"status":"False"`},
		{"dry run POST /api/v1/namespaces/default/events", `"component":"rehearsing"`, "Nothing has happened"},
		{"dry run POST /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", "uid"},
		{"watch GET /api/v1/nodes"},
	} {
		if len(api.with(want...)) == 0 {
			t.Errorf("no request with %q in\n%s", want, strings.Join(api.with(), "\n"))
		}
	}
	for _, r := range api.with() {
		if !strings.HasPrefix(r, "dry run ") && !strings.HasPrefix(r, "watch ") && !strings.HasPrefix(r, "read ") {
			t.Errorf("%s is no dry run", r)
		}
	}
	for name, c := range map[string]*apiclient.Connections{"Node": w.clients.ForNodes, "Events": w.clients.ForEvents, "Lease": w.clients.ForLeases} {
		if c.Failing() {
			t.Errorf("not all failures of %s were met", name)
		}
	}
}

// Without a permission nothing is written, and the error is the cause of the end.
func TestWritersForbidden(t *testing.T) {
	errNo, errEnd := errors.New("stood down"), errors.New("the end")
	no := func() error { return errNo }
	content := status.NewConditions("nodeprobe")
	content.Set(disk(v1.ConditionTrue))
	w, api := newWriters(t, content, no)
	for name, do := range map[string]func(context.Context) error{
		"Post":      func(ctx context.Context) error { return w.Post(ctx, func() { t.Error("Post posts more") }) },
		"Heartbeat": func(ctx context.Context) error { return w.Heartbeat(ctx, no) },
	} {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, errEnd)
		if err := do(ctx); !errors.Is(err, errEnd) {
			t.Errorf("%s returns %v", name, err)
		}
		cancel()
	}
	if sent := api.with("dry run"); len(sent) > 0 {
		t.Errorf("it writes %q", sent)
	}
}

// An API server that refuses is not asked many times, and what it says is in the error.
func TestWritersRefused(t *testing.T) {
	content := status.NewConditions("nodeprobe")
	content.Set(disk(v1.ConditionFalse))
	w, api := newWriters(t, content, healthy)
	api.refuse = "admission webhook \"w\" does not support dry run"
	err := w.Post(t.Context(), func() { t.Error("Post posts more") })
	if err == nil || !strings.Contains(err.Error(), api.refuse) {
		t.Errorf("Post returns %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := w.Heartbeat(ctx, healthy); err == nil || !strings.Contains(err.Error(), api.refuse) {
		t.Errorf("Heartbeat returns %v", err)
	}
	if asked := api.with("dry run PATCH"); len(asked) == 0 || len(asked) > 5 {
		t.Errorf("it is asked %d times", len(asked))
	}
}

// An agent that only follows the Node reads it, through errors.
func TestRead(t *testing.T) {
	w, api := newWriters(t, status.Follow{}, healthy)
	if err := w.Read(t.Context()); err != nil {
		t.Error(err)
	}
	if w.clients.ForNodes.Failing() || len(api.with("read GET /api/v1/nodes")) == 0 || len(api.with("dry run")) > 0 {
		t.Errorf("requests are %q; failures left: %t", api.with(), w.clients.ForNodes.Failing())
	}
}

// An API that cannot be used is named in the error.
func TestNewWritersBadAPI(t *testing.T) {
	w, err := NewWriters(Config{API: apiclient.Config{API: &rest.Config{Host: "https://::"}, Origin: "kubeconfig /k"}})
	if w != nil || err == nil || !strings.Contains(err.Error(), "kubeconfig /k") {
		t.Errorf("%v, %v", w, err)
	}
}

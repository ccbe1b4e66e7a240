package status

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	restwatch "k8s.io/client-go/rest/watch"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// codecs knows no more than cmd/nodeprobe has it know.
func codecs() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(v1.SchemeGroupVersion, &v1.Node{}, &v1.NodeList{})
	metav1.AddToGroupVersion(scheme, v1.SchemeGroupVersion)
	return serializer.NewCodecFactory(scheme)
}

// mediaTypes are what an API server may answer in: JSON, unless the client's
// configuration asks for the other.
var mediaTypes = []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf}

// newTestNodes makes Nodes as cmd/nodeprobe does.
func newTestNodes(t *testing.T, handler http.HandlerFunc) Nodes {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	client, err := rest.RESTClientFor(&rest.Config{
		Host: server.URL, APIPath: "/api", QPS: -1,
		ContentConfig: rest.ContentConfig{
			GroupVersion:         &v1.SchemeGroupVersion,
			NegotiatedSerializer: codecs().WithoutConversion(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return NewNodes(client)
}

// write is how an API server answers. The handler runs in another goroutine, so
// that it must not end the test.
func write(t *testing.T, w http.ResponseWriter, mediaType string, code int, object runtime.Object) {
	info, _ := runtime.SerializerInfoForMediaType(codecs().SupportedMediaTypes(), mediaType)
	w.Header().Set("Content-Type", mediaType)
	w.WriteHeader(code)
	if err := codecs().EncoderForVersion(info.Serializer, v1.SchemeGroupVersion).Encode(object, w); err != nil {
		t.Error(err)
	}
}

func wireNode(version string) *v1.Node {
	n := postedNode()
	n.ResourceVersion = version
	return n
}

// untyped drops the kind, which some decoders set and some do not.
func untyped(object runtime.Object) *v1.Node {
	node, _ := object.(*v1.Node)
	if node != nil {
		node.TypeMeta = metav1.TypeMeta{}
	}
	return node
}

func TestNodesRequests(t *testing.T) {
	const path = "/api/v1/nodes"
	const patch = `{"status":{"phase":"<>"}}`
	for _, mediaType := range mediaTypes {
		for _, test := range []struct {
			name, want, contentType string
			call                    func(context.Context, Nodes) (*v1.Node, error)
		}{
			{
				"get", "GET " + path + "/node-1", "",
				func(ctx context.Context, n Nodes) (*v1.Node, error) { return n.Get(ctx, apitest.NodeName) },
			},
			{
				"create", "POST " + path, runtime.ContentTypeJSON,
				func(ctx context.Context, n Nodes) (*v1.Node, error) { return n.Create(ctx, wireNode("")) },
			},
			{
				"patch", "PATCH " + path + "/node-1/status", "application/strategic-merge-patch+json",
				func(ctx context.Context, n Nodes) (*v1.Node, error) {
					return n.PatchStatus(ctx, apitest.NodeName, []byte(patch))
				},
			},
		} {
			t.Run(test.name+", answered in "+mediaType, func(t *testing.T) {
				nodes := newTestNodes(t, func(w http.ResponseWriter, r *http.Request) {
					apitest.Diff(t, "request", test.want, r.Method+" "+r.URL.String())
					apitest.Diff(t, "content type", test.contentType, r.Header.Get("Content-Type"))
					body, _ := io.ReadAll(r.Body)
					switch test.name {
					case "get":
						apitest.Diff(t, "body", "", string(body))
					case "create":
						sent, _, err := codecs().UniversalDeserializer().Decode(body, nil, nil)
						if err != nil {
							t.Error(err)
						}
						apitest.Diff(t, "body", wireNode(""), untyped(sent), apitest.SameTimes())
					case "patch":
						apitest.Diff(t, "body", patch, string(body))
					}
					write(t, w, mediaType, http.StatusOK, wireNode("42"))
				})
				got, err := test.call(t.Context(), nodes)
				if err != nil {
					t.Fatal(err)
				}
				apitest.Diff(t, "answer", wireNode("42"), untyped(got), apitest.SameTimes())
			})
		}
	}
}

// The errors that the Updater distinguishes arrive as such, with the server's
// words, and without a Node.
func TestNodesErrors(t *testing.T) {
	for _, test := range []struct {
		name   string
		status *apierrors.StatusError
		is     func(error) bool
	}{
		{"not found", apierrors.NewNotFound(v1.Resource("nodes"), apitest.NodeName), apierrors.IsNotFound},
		{"already exists", apierrors.NewAlreadyExists(v1.Resource("nodes"), apitest.NodeName), apierrors.IsAlreadyExists},
		{"forbidden", apitest.ErrForbidden, apierrors.IsForbidden},
		{"internal", apitest.ErrServer, apierrors.IsInternalError},
		{"expired", apierrors.NewResourceExpired("too old resource version"), apierrors.IsResourceExpired},
	} {
		t.Run(test.name, func(t *testing.T) {
			nodes := newTestNodes(t, func(w http.ResponseWriter, _ *http.Request) {
				write(t, w, mediaTypes[len(test.name)%2], int(test.status.ErrStatus.Code), &test.status.ErrStatus)
			})
			ctx := t.Context()
			for name, call := range map[string]func() (any, error){
				"get":    func() (any, error) { n, err := nodes.Get(ctx, apitest.NodeName); return n == nil, err },
				"create": func() (any, error) { n, err := nodes.Create(ctx, wireNode("")); return n == nil, err },
				"patch": func() (any, error) {
					n, err := nodes.PatchStatus(ctx, apitest.NodeName, []byte(`{}`))
					return n == nil, err
				},
				"watch": func() (any, error) {
					w, err := nodes.Watch(ctx, apitest.NodeName, "1", time.Minute)
					return w == nil, err
				},
			} {
				none, err := call()
				if none != true || !test.is(err) || err.Error() != test.status.Error() {
					t.Errorf("%s: nothing besides the error is %v; error %v", name, none, err)
				}
			}
		})
	}
}

func TestNodesWatch(t *testing.T) {
	for _, mediaType := range mediaTypes {
		t.Run(mediaType, func(t *testing.T) {
			nodes := newTestNodes(t, func(w http.ResponseWriter, r *http.Request) {
				const want = "GET /api/v1/nodes?allowWatchBookmarks=true&fieldSelector=metadata.name%3Dnode-1&resourceVersion=41&timeoutSeconds=90&watch=true"
				apitest.Diff(t, "request", want, r.Method+" "+r.URL.String())
				w.Header().Set("Content-Type", mediaType+";stream=watch")
				gone := apierrors.NewResourceExpired("too old").ErrStatus
				writeEvents(t, w, mediaType, []watch.Event{
					{Type: watch.Modified, Object: wireNode("42")},
					{Type: watch.Bookmark, Object: &v1.Node{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "50"}}},
					{Type: watch.Deleted, Object: wireNode("51")},
					{Type: watch.Error, Object: &gone},
				})
			})
			w, err := nodes.Watch(t.Context(), apitest.NodeName, "41", 90*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			for _, want := range []watch.Event{
				{Type: watch.Modified, Object: wireNode("42")},
				{Type: watch.Bookmark, Object: &v1.Node{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "50"}}},
				{Type: watch.Deleted, Object: wireNode("51")},
			} {
				e := <-w.ResultChan()
				e.Object = untyped(e.Object)
				apitest.Diff(t, "event", want, e, apitest.SameTimes())
			}
			if e := <-w.ResultChan(); e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
				t.Errorf("event %v, want that the version is too old", e)
			}
			if e, open := <-w.ResultChan(); open {
				t.Errorf("event %v after the end", e)
			}
		})
	}
}

func writeEvents(t *testing.T, w http.ResponseWriter, mediaType string, events []watch.Event) {
	info, _ := runtime.SerializerInfoForMediaType(codecs().SupportedMediaTypes(), mediaType)
	stream := info.StreamSerializer
	encoder := restwatch.NewEncoder(
		streaming.NewEncoder(stream.NewFrameWriter(w), codecs().EncoderForVersion(stream.Serializer, v1.SchemeGroupVersion)),
		codecs().EncoderForVersion(info.Serializer, v1.SchemeGroupVersion),
	)
	for i := range events {
		if err := encoder.Encode(&events[i]); err != nil {
			t.Error(err)
		}
	}
}

// What breaks on the way is an error, and none of those that mean something.
func TestNodesBrokenAnswers(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"closed before the answer": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"closed within the answer": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind":"Node","apiVersion":"v1","meta`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"not a Node":   func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		"nothing":      writeJSON(`{}`),
		"another Node": writeJSON(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"other"}}`),
		"half a Node":  writeJSON(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"` + apitest.NodeName + `"`),
		"success":      writeJSON(`{"kind":"Status","apiVersion":"v1","status":"Success"}`),
	} {
		t.Run(name, func(t *testing.T) {
			node, err := newTestNodes(t, answer).PatchStatus(t.Context(), apitest.NodeName, []byte(`{}`))
			if node != nil || err == nil || apierrors.IsNotFound(err) {
				t.Errorf("got %v, %v; want some other error", node, err)
			}
		})
	}
}

func writeJSON(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, body)
	}
}

// That the API server asks to be left alone is an answer like any other: who
// retries must know.
func TestNodesDoNotRetry(t *testing.T) {
	requests := 0
	nodes := newTestNodes(t, func(w http.ResponseWriter, _ *http.Request) {
		requests++
		w.Header().Set("Retry-After", "1")
		http.Error(w, "slow down", http.StatusTooManyRequests)
	})
	_, getErr := nodes.Get(t.Context(), apitest.NodeName)
	_, watchErr := nodes.Watch(t.Context(), apitest.NodeName, "1", time.Minute)
	for _, err := range []error{getErr, watchErr} {
		if asked(err) != time.Second {
			t.Errorf("%v, and asked to wait %v", err, asked(err))
		}
	}
	apitest.Diff(t, "requests", 2, requests)
}

// Every call of an Updater has a deadline, but for watches.
func TestNodesAreBounded(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	bounded := boundedNodes{newTestNodes(t, func(http.ResponseWriter, *http.Request) { <-release }), 20 * time.Millisecond}
	_, getErr := bounded.Get(t.Context(), apitest.NodeName)
	_, createErr := bounded.Create(t.Context(), wireNode(""))
	_, patchErr := bounded.PatchStatus(t.Context(), apitest.NodeName, []byte(`{}`))
	for _, err := range []error{getErr, createErr, patchErr} {
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline", err)
		}
	}
}

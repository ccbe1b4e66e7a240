package nodeprobe

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// apiServer is as much of an API server as an agent needs: one Node, its Lease and
// Events, over HTTP. It records field managers as the real one does.
type apiServer struct {
	config *rest.Config

	mu       sync.Mutex // guards the rest
	version  int
	node     *v1.Node
	lease    *coordinationv1.Lease
	events   []v1.Event
	requests []string                 // method and path, but for watches and dry runs
	dryRuns  []string                 // method, path and body
	refuse   func(*http.Request) bool // with 503
}

var apiDecoder = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(v1.SchemeGroupVersion, &v1.Node{}, &v1.Event{})
	scheme.AddKnownTypes(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{})
	return serializer.NewCodecFactory(scheme).UniversalDeserializer()
}()

// newAPIServer serves until the test ends.
func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{}
	server := httptest.NewServer(s)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	s.config = &rest.Config{Host: server.URL}
	return s
}

// edit changes what is stored, or how requests are answered.
func (s *apiServer) edit(f func(*apiServer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// stored returns a copy of the Node; nil if there is none.
func (s *apiServer) stored() *v1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node.DeepCopy()
}

// condition returns a condition of the Node; the zero one if there is none.
func (s *apiServer) condition(kind string) v1.NodeCondition {
	if node := s.stored(); node != nil {
		for _, c := range node.Status.Conditions {
			if string(c.Type) == kind {
				return c
			}
		}
	}
	return v1.NodeCondition{}
}

func (s *apiServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

// ServeHTTP implements http.Handler.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if r.URL.Query().Get("watch") == "true" { // which nothing happens in
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("resourceVersion") == "0" {
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "ADDED", "object": s.stored()})
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.URL.Query().Get("dryRun") == metav1.DryRunAll {
		s.dryRuns = append(s.dryRuns, fmt.Sprintf("%s %s %s", r.Method, r.URL.Path, body))
		defer func(version int, node *v1.Node, lease *coordinationv1.Lease, events []v1.Event) {
			s.version, s.node, s.lease, s.events = version, node, lease, events
		}(s.version, s.node, s.lease, s.events)
	} else {
		s.requests = append(s.requests, r.Method+" "+r.URL.Path)
	}
	if s.refuse != nil && s.refuse(r) {
		refusal(metav1.StatusReasonServiceUnavailable, http.StatusServiceUnavailable, "away")(w, r)
		return
	}
	manager, _, _ := strings.Cut(r.UserAgent(), "/")
	object, err := s.do(r.Method, r.URL.Path, body, manager)
	switch {
	case err != nil:
		refusal(metav1.StatusReasonBadRequest, http.StatusBadRequest, err.Error())(w, r)
	case object == nil:
		refusal(metav1.StatusReasonNotFound, http.StatusNotFound, r.URL.Path+" not found")(w, r)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(object)
	}
}

// do returns the object that answers a request; nil if there is none. The caller holds
// the lock.
func (s *apiServer) do(method, path string, body []byte, manager string) (any, error) {
	s.version++
	version := fmt.Sprint(s.version)
	switch {
	case strings.HasPrefix(path, "/api/v1/nodes"):
		if err := s.writeNode(method, body, manager); err != nil || s.node == nil {
			return nil, err
		}
		if method != http.MethodGet {
			s.node.ResourceVersion = version
		}
		return s.node, nil
	case strings.Contains(path, "/leases"):
		if method != http.MethodGet {
			lease := &coordinationv1.Lease{}
			if _, _, err := apiDecoder.Decode(body, nil, lease); err != nil {
				return nil, err
			}
			lease.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
			lease.UID, lease.ResourceVersion = "lease", version
			lease.ManagedFields = managed(manager, "", `{"f:spec":{"f:renewTime":{}}}`)
			s.lease = lease
		}
		if s.lease == nil {
			return nil, nil
		}
		return s.lease, nil
	case strings.Contains(path, "/events"):
		var event v1.Event
		if method == http.MethodPost {
			if _, _, err := apiDecoder.Decode(body, nil, &event); err != nil {
				return nil, err
			}
			s.events = append(s.events, event)
		}
		event.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
		return &event, nil
	}
	return nil, nil
}

func (s *apiServer) writeNode(method string, body []byte, manager string) error {
	switch {
	case method == http.MethodPost:
		node := &v1.Node{}
		if _, _, err := apiDecoder.Decode(body, nil, node); err != nil {
			return err
		}
		node.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
		node.UID = types.UID("node")
		node.ManagedFields = managed(manager, "", `{}`)
		s.node = node
	case method == http.MethodPatch && s.node != nil:
		node, err := patched(s.node, body)
		if err != nil {
			return err
		}
		fields := ""
		for _, c := range node.Status.Conditions {
			fields += fmt.Sprintf(`,"k:{\"type\":\"%s\"}":{".":{},"f:type":{},"f:status":{}}`, c.Type)
		}
		node.ManagedFields = managed(manager, "status", `{"f:status":{"f:conditions":{".":{}`+fields+`}}}`)
		s.node = node
	}
	return nil
}

func managed(manager, subresource, fields string) []metav1.ManagedFieldsEntry {
	now := metav1.NewTime(time.Now())
	return []metav1.ManagedFieldsEntry{{
		Manager: manager, Subresource: subresource, Operation: metav1.ManagedFieldsOperationUpdate, Time: &now,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
	}}
}

// patched returns a Node with a strategic-merge patch applied: entries of lists are
// merged by their type, which is enough for conditions and addresses.
func patched(node *v1.Node, patch []byte) (*v1.Node, error) {
	before, err := json.Marshal(node)
	if err != nil {
		return nil, err
	}
	var object, change map[string]any
	if err := errors.Join(json.Unmarshal(before, &object), json.Unmarshal(patch, &change)); err != nil {
		return nil, err
	}
	after, err := json.Marshal(merged(object, change))
	if err != nil {
		return nil, err
	}
	node = &v1.Node{}
	return node, json.Unmarshal(after, node)
}

func merged(object, change map[string]any) map[string]any {
	if object == nil {
		object = map[string]any{}
	}
	for key, value := range change {
		switch value := value.(type) {
		case nil:
			delete(object, key)
		case map[string]any:
			was, _ := object[key].(map[string]any)
			object[key] = merged(was, value)
		case []any:
			if !strings.HasPrefix(key, "$") {
				was, _ := object[key].([]any)
				object[key] = mergedList(was, value)
			}
		default:
			object[key] = value
		}
	}
	return object
}

func mergedList(list, change []any) []any {
	for _, entry := range change {
		item, ok := entry.(map[string]any)
		if !ok {
			return change
		}
		if item["$patch"] == "replace" {
			list = nil
		}
	}
	for _, entry := range change {
		item := entry.(map[string]any)
		i := slices.IndexFunc(list, func(other any) bool { return other.(map[string]any)["type"] == item["type"] })
		switch {
		case item["$patch"] == "replace":
		case item["$patch"] == "delete" && i >= 0:
			list = slices.Delete(list, i, i+1)
		case item["$patch"] == "delete":
		case i >= 0 && item["type"] != nil:
			list[i] = merged(list[i].(map[string]any), item)
		default:
			list = append(list, item)
		}
	}
	return list
}

// refusal answers as the API server does.
func refusal(reason metav1.StatusReason, code int, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":%q}`, reason, code, message)
	}
}

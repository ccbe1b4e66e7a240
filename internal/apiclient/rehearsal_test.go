package apiclient

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"syscall"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nodeprobe/nodeprobe/heartbeat"
)

// In a rehearsal each write is a dry run, and each request that is to fail does so in
// another way, without the API server; nowhere else.
func TestRehearsal(t *testing.T) {
	for _, rehearsal := range []bool{true, false} {
		var requests, dryRuns atomic.Int32
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			if r.URL.Query().Get("dryRun") == metav1.DryRunAll {
				dryRuns.Add(1)
			}
			w.Header().Set("Content-Type", "application/json")
			if r.URL.Path == "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n" {
				io.WriteString(w, `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"n"}}`)
				return
			}
			_ = json.NewEncoder(w).Encode(v1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		}))
		defer api.Close()
		c, err := New(Config{API: &rest.Config{Host: api.URL}, NodeName: "n", OnReconnect: func() {}, Rehearsal: rehearsal})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx, node := t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		event := &v1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "default"}}
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n", Namespace: heartbeat.Namespace}}
		for i, write := range []func() error{
			func() error { _, err := c.Nodes.Create(ctx, node); return err },
			func() error { _, err := c.Nodes.PatchStatus(ctx, "n", []byte("{}")); return err },
			func() error { return c.Events.Create(ctx, event) },
			func() error { return c.Events.Patch(ctx, "default", "e", []byte("{}")) },
			func() error { _, err := c.Leases.Update(ctx, lease); return err },
		} {
			if err := write(); err != nil {
				t.Errorf("write %d: %v", i, err)
			}
		}
		if want := map[bool]int32{true: 5}[rehearsal]; dryRuns.Load() != want {
			t.Errorf("rehearsal %t: %d dry runs of 5", rehearsal, dryRuns.Load())
		}

		before := requests.Load()
		c.ForNodes.Fail(2 * len(ways))
		if !rehearsal {
			if _, err := c.Nodes.Get(ctx, "n"); err != nil || c.ForNodes.Failing() {
				t.Errorf("outside of a rehearsal a request fails: %v", err)
			}
			continue
		}
		seen := map[string]bool{}
		for i, is := range []func(error) bool{
			func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) },
			apierrors.IsInternalError,
			func(err error) bool { return errors.Is(err, context.DeadlineExceeded) },
			apierrors.IsConflict, apierrors.IsForbidden,
			func(err error) bool { return !apierrors.IsServiceUnavailable(err) }, // a page of HTML
			apierrors.IsInternalError,
		} {
			_, err := c.Nodes.Get(ctx, "n")
			if err == nil || !is(err) || seen[err.Error()] {
				t.Errorf("failure %d is %v", i, err)
				continue
			}
			seen[err.Error()] = true
		}
		if _, err := c.Nodes.Get(ctx, "n"); err != nil || c.ForNodes.Failing() || requests.Load() != before+1 {
			t.Errorf("after that: %v, %d requests", err, requests.Load()-before)
		}
	}
}

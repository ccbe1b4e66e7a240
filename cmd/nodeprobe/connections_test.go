package main

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/heartbeat"
)

// A request without an answer costs its writer's connections and nobody else's.
func TestConnectionsOfTheirOwn(t *testing.T) {
	renewing, renew := make(chan struct{}), make(chan struct{})
	client := apiUntil(t, time.Now().Add(time.Hour), func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			<-r.Context().Done() // an Event's
			return
		}
		if r.Method == http.MethodPut {
			close(renewing)
			<-renew
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"n"}}`)
	})
	var renewal sync.WaitGroup
	renewal.Go(func() {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n", Namespace: heartbeat.Namespace}}
		if _, err := client.leases.Update(t.Context(), lease); err != nil {
			t.Errorf("a renewal that was under way: %v", err)
		}
	})
	<-renewing
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if err := client.events.Create(ctx, &v1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "default"}}); err == nil {
		t.Error("the Event is posted")
	}
	client.forEvents.reconnect()
	close(renew)
	renewal.Wait()
}

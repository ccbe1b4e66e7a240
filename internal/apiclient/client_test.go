package apiclient

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nodeprobe/nodeprobe/heartbeat"
)

// A request without an answer costs its writer's connections and nobody else's.
func TestConnectionsOfTheirOwn(t *testing.T) {
	for name, test := range map[string]struct {
		hangs string
		write func(context.Context, *Clients) error
		own   func(*Clients) *Connections
	}{
		"event": {http.MethodPost, func(ctx context.Context, c *Clients) error {
			return c.Events.Create(ctx, &v1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "default"}})
		}, func(c *Clients) *Connections { return c.ForEvents }},
		"status": {http.MethodPatch, func(ctx context.Context, c *Clients) error {
			_, err := c.Nodes.PatchStatus(ctx, "n", []byte("{}"))
			return err
		}, func(c *Clients) *Connections { return c.ForNodes }},
	} {
		t.Run(name, func(t *testing.T) {
			renewing, renew := make(chan struct{}), make(chan struct{})
			client := apiUntil(t, time.Now().Add(time.Hour), func(w http.ResponseWriter, r *http.Request) {
				if r.Method == test.hangs {
					<-r.Context().Done()
					return
				}
				close(renewing)
				<-renew
				w.Header().Set("Content-Type", "application/json")
				io.WriteString(w, `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"n"}}`)
			})
			var renewal sync.WaitGroup
			renewal.Go(func() {
				lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n", Namespace: heartbeat.Namespace}}
				if _, err := client.Leases.Update(t.Context(), lease); err != nil {
					t.Errorf("a renewal that was under way: %v", err)
				}
			})
			<-renewing
			ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer stop()
			if err := test.write(ctx, client); err == nil {
				t.Error("it is written")
			}
			test.own(client).Reconnect()
			close(renew)
			renewal.Wait()
		})
	}
}

// What the caller's rest.Config has is sent, with our name: the field manager is what
// the API server takes from the user agent. A token file is read again when the token is
// refused, and the caller's Config is left as it is.
func TestCredentials(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(token, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	var sent http.Header
	valid := "Bearer first"
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		sent = r.Header.Clone()
		if got := r.Header.Get("Authorization"); got != valid {
			refusal(metav1.StatusReasonUnauthorized, http.StatusUnauthorized, "Unauthorized")(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n","uid":"1"}}`)
	}))
	defer api.Close()
	reconnected := 0
	base := &rest.Config{Host: api.URL, BearerTokenFile: token, UserAgent: "caller", Impersonate: rest.ImpersonationConfig{UserName: "system:node:n"}}
	before := rest.CopyConfig(base)
	cfg := Config{NodeName: "n", Origin: "Config.API", UserAgent: "edge-agent/v1.2.3", API: base, OnReconnect: func() { reconnected++ }}
	write("first\n")
	client, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	get := func(step string, wantErr string) {
		t.Helper()
		_, err := client.Nodes.Get(t.Context(), "n")
		if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%s: %v, want %q", step, err, wantErr)
		}
	}
	get("a token", "")
	if sent.Get("User-Agent") != "edge-agent/v1.2.3" || sent.Get("Impersonate-User") != "system:node:n" || sent.Get("Impersonate-Group") != "" {
		t.Errorf("sent %v", sent)
	}
	write("second\n")
	get("the token from before, which is still valid", "")
	mu.Lock()
	valid = "Bearer second"
	mu.Unlock()
	get("a token that is not valid any more", "the credentials of Config.API are refused, or have expired")
	get("the new one", "")
	if base.UserAgent != before.UserAgent || base.BearerTokenFile != token || base.Dial != nil || base.WrapTransport != nil || base.QPS != 0 {
		t.Errorf("the caller's Config is changed: %+v", base)
	}
	client.ForNodes.Reconnect()
	if reconnected != 1 {
		t.Errorf("OnReconnect was called %d times", reconnected)
	}
	get("after reconnecting", "")
}

// A timeout of the caller's rest.Config is for its own calls: the watch of the Node
// lasts for minutes.
func TestWatchOutlivesTimeoutOfConfig(t *testing.T) {
	limit := make(chan string, 1)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limit <- r.URL.Query().Get("timeout")
		time.Sleep(20 * time.Millisecond) // longer than the timeout
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"type":"ADDED","object":{"kind":"Node","apiVersion":"v1","metadata":{"name":"n"}}}`+"\n")
	}))
	defer api.Close()
	client, err := New(Config{
		API: &rest.Config{Host: api.URL, Timeout: time.Millisecond}, Origin: "Config.API", NodeName: "n",
		UserAgent: "nodeprobe/v1.2.3", OnReconnect: func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	w, err := client.Nodes.Watch(t.Context(), "n", "1", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if event, ok := <-w.ResultChan(); !ok || event.Type != "ADDED" {
		t.Errorf("the watch ended: %v", event)
	}
	if got := <-limit; got != "" {
		t.Errorf("the API server is asked for a timeout of %s", got)
	}
}

package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// The status page tells when the API server last heard of us.
func TestPageTellsOfWrites(t *testing.T) {
	t.Parallel()
	n := newNode(t, controlplane.StartForTest(t), agent.Config{})
	a := n.StartReady()
	code, body, err := a.Get(t.Context(), "/api/v1/status")
	if err != nil || code != 200 {
		t.Fatalf("%d, %v: %s", code, err, body)
	}
	var got struct {
		NodeName, Mode string
		Checks         []struct{ Name, Error string }
		Status         struct {
			Posted time.Time
			Reason string
			Bytes  int
		}
		Lease struct {
			Renewed time.Time
			Result  string
		}
	}
	must.OK(t, json.Unmarshal(body, &got))
	if got.NodeName != n.Name || got.Mode != "own" {
		t.Errorf("got %s", body)
	}
	var checks []string
	for _, c := range got.Checks {
		checks = append(checks, c.Name)
		if c.Error != "" {
			t.Errorf("%s: %s", c.Name, c.Error)
		}
	}
	if want := []string{"sampler", "conditions", "status", "lease"}; !slices.Equal(checks, want) {
		t.Errorf("checks %q, want %q", checks, want)
	}
	if s := got.Status; s.Posted.Before(a.Started) || s.Posted.After(time.Now()) || s.Reason == "" || s.Bytes == 0 {
		t.Errorf("status: %+v", s)
	}
	lease := must.Get(n.Lease())(t)
	// It may have been renewed once more since.
	if l := got.Lease; l.Renewed.Before(a.Started) || l.Renewed.After(lease.Spec.RenewTime.Add(time.Second)) || l.Result != "success" {
		t.Errorf("lease: %+v, and the API server has %s", l, lease.Spec.RenewTime)
	}
	_, body, err = a.Get(t.Context(), "/")
	for _, want := range []string{"<dt>Status</dt><dd>posted ", "<dt>Lease</dt><dd>renewed "} {
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("no %q: %v\n%s", want, err, body)
		}
	}
}

package page

import (
	"errors"
	"net/http"
	"testing"

	"github.com/nodeprobe/nodeprobe"
)

func TestHealth(t *testing.T) {
	var state nodeprobe.State // before the first sample, too
	h := serve(newPage(&state))
	want := func(path string, code int, body string) {
		t.Helper()
		if w := request(h, http.MethodGet, path); w.Code != code || w.Body.String() != body {
			t.Errorf("GET %s: %d %q, want %d %q", path, w.Code, w.Body, code, body)
		}
	}
	set := func(sampler, lease error) {
		state.Live = []nodeprobe.Check{{Name: "sampler", Err: sampler}}
		state.Ready = append(state.Live[:1:1], nodeprobe.Check{Name: "lease", Err: lease})
	}
	set(nil, nil)
	want("/livez", 200, "ok")
	want("/healthz", 200, "ok")
	want("/readyz", 200, "ok")
	want("/livez?verbose", 200, "[+]sampler ok\nlivez check passed\n")
	want("/healthz?verbose=1", 200, "[+]sampler ok\nhealthz check passed\n")
	want("/readyz?verbose", 200, "[+]sampler ok\n[+]lease ok\nreadyz check passed\n")

	notRenewed := errors.New("not renewed yet")
	set(nil, notRenewed)
	want("/livez", 200, "ok")
	want("/readyz", 503, "[+]sampler ok\n[-]lease failed: not renewed yet\nreadyz check failed\n")
	want("/readyz?verbose", 503, "[+]sampler ok\n[-]lease failed: not renewed yet\nreadyz check failed\n")

	set(errors.New("last sample is 1m old"), notRenewed)
	want("/livez", 503, "[-]sampler failed: last sample is 1m old\nlivez check failed\n")
	want("/healthz", 503, "[-]sampler failed: last sample is 1m old\nhealthz check failed\n")
	want("/readyz", 503, "[-]sampler failed: last sample is 1m old\n[-]lease failed: not renewed yet\nreadyz check failed\n")
}

func TestStatusLine(t *testing.T) {
	state := observed(t)
	state.Ready = nil
	want := "mode observe, node 192.0.2.7: MemoryPressure=False DiskPressure=False PIDPressure=False"
	if got := StatusLine(&state); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	state.Ready = []nodeprobe.Check{{Name: "sampler"}, {Name: "status", Err: errors.New("connection\nrefused")}}
	if got, want := StatusLine(&state, "configuration rejected"), want+"; status: connection\ufffdrefused; configuration rejected"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

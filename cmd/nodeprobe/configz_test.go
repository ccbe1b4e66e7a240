package main

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/web"
)

// What is served is a configuration that comes to the same when it is read again.
func TestConfigz(t *testing.T) {
	const text = header + `mode: own
evictionHard: {memory.available: 1Gi}
evictionPressureTransitionPeriod: 90s
nodeLabels: {rack: r7}
registerWithTaints: [{key: a, value: b, effect: NoSchedule}]
imageDirectories: []
maxPods: 250
`
	cfg, _, err := parseConfig("f", []byte(text), setting{"log.level", "logLevel", "warn", func(c *config) *string { return &c.LogLevel }})
	if err != nil {
		t.Fatal(err)
	}
	h := web.Routes{"GET /configz": configz(&cfg, "worker-1")}.Handler()
	code, body := ask(h, http.MethodGet, "/configz")
	if code != http.StatusOK || !strings.HasPrefix(body, `{"nodeprobeconfig":{`) {
		t.Fatalf("%d %s", code, body)
	}
	var got map[string]map[string]any
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	fields := got["nodeprobeconfig"]
	if n := reflect.TypeFor[config]().NumField(); len(fields) != n || len(got) != 1 {
		t.Errorf("%d fields, want %d:\n%s", len(fields), n, body)
	}
	for field, want := range map[string]any{
		"nodeName": "worker-1", "logLevel": "warn", "maxPods": 250.0, "evictionPressureTransitionPeriod": "1m30s",
		"imageDirectories": []any{}, "evictionSoft": map[string]any{}, "webConfigFile": "", "webHealthListenAddress": "",
	} {
		if diff := cmp.Diff(want, fields[field]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", field, diff)
		}
	}

	again, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	read, _, err := parseConfig("configz", again)
	if err != nil {
		t.Fatal(err)
	}
	cfg.NodeName = "worker-1"
	if diff := cmp.Diff(cfg, read); diff != "" {
		t.Errorf("(-served +read):\n%s", diff)
	}

	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
		if code, _ := ask(h, method, "/configz"); code != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, code)
		}
	}
}

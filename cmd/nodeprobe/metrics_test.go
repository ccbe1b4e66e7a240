package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

// getAs returns what /metrics responds to a client that accepts so.
func getAs(t *testing.T, url, accept string) (contentType, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, err)
	}
	return resp.Header.Get("Content-Type"), string(b)
}

// All of /metrics is as Prometheus wants it, and has what is promised.
func TestMetricsLint(t *testing.T) {
	url := startOn(t, testtree.New(t, nil), "")
	_, body := getAs(t, url, "")
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, want := range []string{
		`nodeprobe_signal_available_bytes{signal="memory.available"} 6.442450944e+09`,
		`nodeprobe_node_condition{condition="MemoryPressure",status="false"} 1`,
		`nodeprobe_node_condition{condition="MemoryPressure",status="true"} 0`,
		`nodeprobe_node_condition_last_transition_timestamp_seconds{condition="MemoryPressure"} `,
		`nodeprobe_condition_status{condition="MemoryPressure"} 0`,
		`nodeprobe_signal_limit_bytes{signal="memory.available",threshold="memory.available<100Mi"} 1.048576e+08`,
		`nodeprobe_cpu_seconds_total{mode="idle"} 993.21`,
		`nodeprobe_bpf_hook_attached{hook="tp_btf/mark_victim",signal="oom"} `,
		`nodeprobe_tier_info{`, `nodeprobe_web_connections`, `nodeprobe_config_last_reload_successful 1`,
		`nodeprobe_build_info{`, `process_resident_memory_bytes `, `go_goroutines `,
	} {
		if !strings.Contains(body, "\n"+want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(body, "allocatableMemory") {
		t.Error("a signal that is absent is exported")
	}
}

func TestOpenMetrics(t *testing.T) {
	url := startOn(t, testtree.New(t, nil), "")
	const (
		open10 = "application/openmetrics-text; version=1.0.0; charset=utf-8"
		open00 = "application/openmetrics-text; version=0.0.1; charset=utf-8"
		text   = "text/plain; version=0.0.4; charset=utf-8"
	)
	for _, test := range []struct{ name, accept, want string }{
		{"anything", "", text},
		{"a browser", "text/html,application/xhtml+xml,*/*;q=0.8", text},
		{"text", "text/plain;version=0.0.4", text},
		{"OpenMetrics", "application/openmetrics-text;version=1.0.0", open10},
		{"earlier OpenMetrics", "application/openmetrics-text;version=0.0.1", open00},
		{"Prometheus 2", "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", open10},
		{"Prometheus 3", "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1", open10},
		{"text rather than OpenMetrics", "application/openmetrics-text;version=1.0.0;q=0.1,text/plain;version=0.0.4;q=0.9", text},
		{"something else", "application/json", text},
	} {
		got, body := getAs(t, url, test.accept)
		if !strings.HasPrefix(got, test.want) { // the escaping of names may follow
			t.Errorf("%s: Content-Type: %s", test.name, got)
		}
		isOpen := strings.Contains(test.want, "openmetrics")
		if eof := strings.HasSuffix(body, "# EOF\n"); eof != isOpen {
			t.Errorf("%s: ends in # EOF: %v", test.name, eof)
		}
		// There the family of a counter has no _total.
		if short := strings.Contains(body, "# TYPE nodeprobe_oom_kills counter\n"); short != isOpen {
			t.Errorf("%s: counters of OpenMetrics: %v", test.name, short)
		}
	}
}

// A wrong web configuration ends run and config check with the exit code of a wrong
// configuration and a line for each problem, which does not repeat what may be a password.
func TestBadWebConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.yml")
	config := writeConfig(t, "webConfigFile: "+path+"\n")
	check := func(text, want string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"run", "--web.listen-address=127.0.0.1:0", "--config"}, {"config", "check"}} {
			wanted := outcome{exitUsage, "", "nodeprobe: " + path + want + "\n"}
			if diff := cmp.Diff(wanted, command(t, append(args, config)...), cmp.AllowUnexported(outcome{})); diff != "" {
				t.Errorf("%v (-want +got):\n%s", args, diff)
			}
		}
	}
	check("basic_auth_users: {alice: secret}\n", ":1: basic_auth_users[alice]: not a password hashed with bcrypt; make it with htpasswd -nBC 10 alice")
	check("basic_auth_users: secret\n", ":1: cannot unmarshal !!str into map[string]config.Secret")
	check("tls_server_config:\n  cert_file: /nonexistent\n  key_file: /nonexistent\n", strings.Join([]string{
		":2: tls_server_config.cert_file: open /nonexistent: no such file or directory",
		"nodeprobe: " + path + ":3: tls_server_config.key_file: open /nonexistent: no such file or directory",
	}, "\n"))
	if err := os.WriteFile(path, []byte("rate_limit: {interval: 1s, burst: 5}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := command(t, "config", "check", config); got.code != 0 || !strings.HasSuffix(got.stdout, ": ok\n") {
		t.Errorf("got %+v", got)
	}

	// A configuration may be checked on another machine; run needs the file.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	missing := path + ": no such file or directory\n"
	for _, test := range []struct {
		args []string
		want outcome
	}{
		{[]string{"config", "check", config}, outcome{0, config + ": warning: webConfigFile: not checked: stat " + missing + config + ": ok\n", ""}},
		{[]string{"run", "--web.listen-address=127.0.0.1:0", "--config", config}, outcome{exitUsage, "", "nodeprobe: read web configuration: open " + missing}},
	} {
		if diff := cmp.Diff(test.want, command(t, test.args...), cmp.AllowUnexported(outcome{})); diff != "" {
			t.Errorf("%v (-want +got):\n%s", test.args, diff)
		}
	}
}

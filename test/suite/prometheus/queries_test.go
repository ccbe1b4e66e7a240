package prometheus_test

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/containerd"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
	"github.com/nodeprobe/nodeprobe/test/harness/prometheus"
	"github.com/nodeprobe/nodeprobe/test/harness/wait"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

// patience is for what waits for scrapes, which come every second.
const patience = 3 * time.Minute

// Each query of the dashboard, and each selector in the alerts, finds something in
// what a real Prometheus has scraped from real nodeprobes in every mode, over TLS
// too: none asks for a metric or a label that is not there.
func TestQueries(t *testing.T) {
	need.Root(t)
	need.Command(t, "prometheus", "prometheus")
	need.Command(t, "containerd", "containerd")
	binary := build.ProductForTest(t)
	targets, running := agents(t, binary)
	secure := secured(t, binary)
	config := map[string]any{
		"global":     map[string]any{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files": []string{deployed(t, "rules/rules.yaml")},
		"scrape_configs": []any{
			map[string]any{"job_name": "nodeprobe", "static_configs": targets},
			secure.scrapeConfig(),
		},
	}
	s := prometheus.StartForTest(t, t.TempDir(), config)
	wait.Until(t, patience, "all are scraped", func() error { return s.Scraped(t.Context()) })

	wanted := map[string]string{} // by query, whose it is
	for _, p := range dashboard(t) {
		for _, target := range p.Targets {
			expr := expand(target.Expr)
			wanted[expr] = "dashboard: " + p.Title
			for _, selector := range selectors(expr) {
				wanted[selector] = "dashboard: " + p.Title
			}
		}
	}
	var rules []prometheus.Rule
	wait.Until(t, patience, "the alerts are evaluated", func() error {
		var err error
		if rules, err = s.Rules(t.Context()); err != nil {
			return err
		}
		for _, r := range rules {
			if r.Health == "unknown" {
				return fmt.Errorf("%s is not evaluated", r.Name)
			}
		}
		return nil
	})
	for _, r := range rules {
		if r.Health != "ok" {
			t.Errorf("%s: %s: %s", r.Name, r.Health, r.LastError)
		}
		found := selectors(r.Query)
		if len(found) == 0 {
			t.Errorf("%s: no selector in %s", r.Name, r.Query)
		}
		for _, selector := range found {
			wanted[selector] = "alert: " + r.Name
		}
	}
	if len(rules) < 20 || len(wanted) < 80 {
		t.Errorf("%d alerts, %d queries: where are the rest?", len(rules), len(wanted))
	}
	findAll(t, s, wanted)

	for mode, a := range running {
		code, body, err := a.Get(t.Context(), "/metrics")
		if err != nil || code != http.StatusOK {
			t.Fatalf("%s: %d %v", mode, code, err)
		}
		if out, ok := promtool(t, body, "check", "metrics"); !ok || out != "" {
			t.Errorf("promtool check metrics of %s:\n%s", mode, out)
		}
	}
}

// findAll asks until each query has found something. There is no exception: where
// nothing is wrong here, what an alert compares is there all the same.
func findAll(t *testing.T, s *prometheus.Server, wanted map[string]string) {
	t.Helper()
	left := maps.Clone(wanted)
	for deadline := time.Now().Add(patience); len(left) > 0 && time.Now().Before(deadline); time.Sleep(time.Second) {
		for expr := range left {
			n, err := s.Query(t.Context(), expr)
			if err != nil {
				t.Errorf("%s: %v", left[expr], err)
			}
			if n > 0 || err != nil {
				delete(left, expr)
			}
		}
	}
	for _, expr := range slices.Sorted(maps.Keys(left)) {
		t.Errorf("%s: finds nothing: %s", left[expr], expr)
	}
}

// expand puts values in place of the dashboard's variables.
func expand(expr string) string {
	return strings.NewReplacer("$__rate_interval", "1m", "$__range", "1h", "$job", "nodeprobe", "$instance", ".*").Replace(expr)
}

var selector = regexp.MustCompile(`\b(?:(?:nodeprobe|process|go)_\w+|up)(?:\{[^}]*\})?`)

// selectors returns what an expression is made from.
func selectors(expr string) []string { return selector.FindAllString(expr, -1) }

func TestSelectors(t *testing.T) {
	got := selectors(`sum without (cause) (increase(nodeprobe_a_total{b=~"c",d!="e"}[5m])) > up{job="x"} unless go_threads`)
	if want := []string{`nodeprobe_a_total{b=~"c",d!="e"}`, `up{job="x"}`, `go_threads`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// agents runs nodeprobe in each mode, all but one with BPF, and with a threshold
// that is met. It returns them, and how Prometheus' configuration has them.
func agents(t *testing.T, binary string) (targets []any, running map[string]*agent.Agent) {
	t.Helper()
	runtimeDir := must.Get(os.MkdirTemp("", "np-"))(t) //nolint:usetesting // its path would be too long for a socket
	t.Cleanup(func() { os.RemoveAll(runtimeDir) })
	runtime := containerd.StartForTest(t, containerd.Options{Dir: runtimeDir})
	cp := controlplane.StartForTest(t)
	name := controlplane.ObjectName(t)
	kubeconfig := must.Get(cp.NodeKubeconfig(name))(t)
	base := agent.Own().With(agent.Config{"evictionHard": agent.Hard(map[string]string{"memory.available": "99%"})})
	running = map[string]*agent.Agent{}
	for _, a := range []struct {
		mode, bpf, node, kubeconfig string
		more                        agent.Config
	}{
		{"observe", "auto", "observer", "", nil},
		{"own", "auto", name, kubeconfig, agent.Config{"containerRuntimeEndpoint": runtime.Endpoint}},
		// It takes the owner for the kubelet.
		{"augment", "off", name, cp.AdminKubeconfig(), nil},
	} {
		started := agent.StartForTest(t, agent.Spec{
			Binary: binary, Dir: t.TempDir(), NodeName: a.node, Kubeconfig: a.kubeconfig,
			Config: base.With(agent.Config{"mode": a.mode, "bpf": a.bpf}).With(a.more),
		})
		running[a.mode] = started
		target := strings.TrimPrefix(started.URL(""), "http://")
		targets = append(targets, map[string]any{"targets": []string{target}, "labels": map[string]string{"instance": a.mode}})
	}
	return targets, running
}

// secure is a nodeprobe that asks for a certificate and a password.
type secure struct{ address, cert, key string }

// scrapeConfig is how Prometheus gets to it.
func (s secure) scrapeConfig() any {
	return map[string]any{
		"job_name": "secure", "scheme": "https",
		"tls_config": map[string]string{"ca_file": s.cert, "cert_file": s.cert, "key_file": s.key},
		"basic_auth": map[string]string{"username": "prometheus", "password": "secret"},
		"static_configs": []any{map[string]any{
			"targets": []string{s.address}, "labels": map[string]string{"instance": "secure", "job": "nodeprobe"},
		}},
	}
}

// secretHash is that of "secret".
const secretHash = "$2a$04$uAz2gC.cg/8LgF.ZYgrsK.zCfvi0Mg6/HJBQ1.oCmLiMJahtWMctO"

// secured runs nodeprobe with a web configuration that promtool finds good too.
func secured(t *testing.T, binary string) secure {
	t.Helper()
	dir := t.TempDir()
	s := secure{cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key")}
	// One that is good for 127.0.0.1.
	server := httptest.NewTLSServer(nil)
	pair := server.TLS.Certificates[0]
	server.Close()
	key := must.Get(x509.MarshalPKCS8PrivateKey(pair.PrivateKey))(t)
	for file, block := range map[string]*pem.Block{s.cert: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, s.key: {Type: "PRIVATE KEY", Bytes: key}} {
		must.OK(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	}
	web := filepath.Join(dir, "web.yml")
	text := "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n  client_auth_type: RequireAnyClientCert\nbasic_auth_users:\n  prometheus: " + secretHash + "\n"
	must.OK(t, os.WriteFile(web, []byte(text), 0o600))
	if out, ok := promtool(t, nil, "check", "web-config", web); !ok {
		t.Errorf("promtool check web-config:\n%s", out)
	}
	ports := must.Get(process.FreePorts(1))(t)
	s.address = "127.0.0.1:" + strconv.Itoa(ports[0])
	log := filepath.Join(dir, "log")
	p := must.Get(process.Start(process.Spec{
		Path: binary, LogFile: log,
		Args: []string{"run", "--table=off", "--web.listen-address=" + s.address, "--web.config.file=" + web},
	}))(t)
	t.Cleanup(func() { p.Stop(20 * time.Second) })
	return s
}

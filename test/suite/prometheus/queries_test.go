package prometheus_test

import (
	"bytes"
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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/containerd"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
	"github.com/nodeprobe/nodeprobe/test/harness/prometheus"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

// Each query of the dashboard, and each selector in the alerts, finds something in
// what a real Prometheus has scraped from real nodeprobes in every mode, over TLS
// too: none needs a metric or a label that does not exist.
func TestQueries(t *testing.T) {
	need.Root(t)
	need.Command(t, "prometheus", "prometheus")
	need.Command(t, "containerd", "containerd")
	podsCgroup(t)
	running := agents(t)
	var targets []any
	for mode, a := range running {
		targets = append(targets, map[string]any{"targets": []string{a.Address()}, "labels": map[string]string{"instance": mode}})
	}
	rulesFile, _ := deployed(t, "rules/rules.yaml")
	s := prometheus.StartForTest(t, t.TempDir(), map[string]any{
		"global":         map[string]any{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files":     []string{rulesFile},
		"scrape_configs": []any{map[string]any{"job_name": "nodeprobe", "static_configs": targets}, secured(t)},
	})
	stage.Eventually(t, "all are scraped", func() error { return s.Scraped(t.Context()) })

	wanted := map[string]string{} // what it is in, by query
	values := strings.NewReplacer("$__rate_interval", "1m", "$__range", "1h", "$job", "nodeprobe", "$instance", ".*")
	for _, p := range dashboard(t) {
		for _, target := range p.Targets {
			expr := values.Replace(target.Expr)
			for _, query := range append(selector.FindAllString(expr, -1), expr) {
				wanted[query] = "dashboard: " + p.Title
			}
		}
	}
	var rules []prometheus.Rule
	stage.Until(t, "the alerts are evaluated", func() bool {
		rules = must.Get(s.Rules(t.Context()))(t)
		return !slices.ContainsFunc(rules, func(r prometheus.Rule) bool { return r.Health == "unknown" })
	})
	for _, r := range rules {
		found := selector.FindAllString(r.Query, -1)
		if r.Health != "ok" || len(found) == 0 {
			t.Errorf("%s: %s: %s; selectors %q in %s", r.Name, r.Health, r.LastError, found, r.Query)
		}
		for _, query := range found {
			wanted[query] = "alert: " + r.Name
		}
	}
	if len(rules) < 20 || len(wanted) < 80 {
		t.Errorf("%d alerts, %d queries: where are the rest?", len(rules), len(wanted))
	}
	// There is no exception: what an alert compares exists also where nothing is wrong.
	stage.Eventually(t, "each query finds something", func() error {
		maps.DeleteFunc(wanted, func(expr, _ string) bool { return must.Get(s.Query(t.Context(), expr))(t) > 0 })
		if len(wanted) > 0 {
			return fmt.Errorf("these find nothing: %q", wanted)
		}
		return nil
	})
	var bodies [][]byte
	for mode, a := range running {
		code, body, err := a.Get(t.Context(), "/metrics")
		if err != nil || code != http.StatusOK {
			t.Fatalf("%s: %d %v", mode, code, err)
		}
		promtool(t, body, "check", "metrics")
		bodies = append(bodies, body)
	}
	checkReference(t, bodies)
}

var (
	family = regexp.MustCompile(`(?m)^# HELP (nodeprobe_\w+) (.*)\n# TYPE \w+ (\w+)\n\w+(?:\{(.*)\})?`)
	label  = regexp.MustCompile(`,?(\w+)="(?:[^"\\]|\\.)*"`)
	row    = regexp.MustCompile("(?m)^\\| `(nodeprobe_\\w+)` .*\n")
)

// checkReference compares metrics.md with what was scraped. It may have more: what these
// modes, or this machine, do not have.
func checkReference(t *testing.T, bodies [][]byte) {
	t.Helper()
	path, text := deployed(t, "metrics.md")
	rows := map[string]string{}
	for _, found := range row.FindAllSubmatch(text, -1) {
		rows[string(found[1])] = string(found[0])
	}
	for _, f := range family.FindAllStringSubmatch(string(bytes.Join(bodies, nil)), -1) {
		labels := strings.TrimSpace(strings.ReplaceAll(label.ReplaceAllString(f[4], " `$1`"), " `le`", ""))
		rows[f[1]] = fmt.Sprintf("| `%s` | %s | %s | %s |\n", f[1], f[3], labels, f[2])
	}
	want := append(row.ReplaceAll(text, nil), strings.Join(slices.Sorted(maps.Values(rows)), "")...)
	if *update {
		must.OK(t, os.WriteFile(path, want, 0o644))
	} else if diff := cmp.Diff(string(want), string(text)); diff != "" {
		t.Errorf("metrics.md differs from what is scraped; -update writes it (-scraped +file):\n%s", diff)
	}
}

// podsCgroup makes the cgroup that a kubelet keeps pods in.
func podsCgroup(t *testing.T) {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/unified/"} {
		if _, err := os.Stat(root + "cgroup.controllers"); err == nil && os.Mkdir(root+"kubepods", 0o755) == nil {
			t.Cleanup(func() { os.Remove(root + "kubepods") })
		}
	}
}

// selector is what expressions are made from.
var selector = regexp.MustCompile(`\b(?:(?:nodeprobe|process|go)_\w+|up)(?:\{[^}]*\})?`)

// agents runs nodeprobe in each mode, all but one with BPF, and with a threshold
// that is met.
func agents(t *testing.T) map[string]*agent.Agent {
	t.Helper()
	runtimeDir := must.Get(os.MkdirTemp("", "np-"))(t) //nolint:usetesting // its path would be too long for a socket
	t.Cleanup(func() { os.RemoveAll(runtimeDir) })
	runtime := containerd.Start(t, containerd.Options{Dir: runtimeDir})
	n := stage.New(t, controlplane.StartForTest(t), agent.Config{"evictionHard": agent.Hard(map[string]string{"memory.available": "99%", "nodefs.inodesFree": "0.1%", "pid.available": "0.1%"})})
	running, base := map[string]*agent.Agent{}, n.Spec.Config
	start := func(mode, bpf string, more agent.Config) {
		n.Spec.Dir, n.Spec.Config = t.TempDir(), base.With(agent.Config{"mode": mode, "bpf": bpf}).With(more)
		running[mode] = n.Start()
	}
	start("own", "auto", agent.Config{"containerRuntimeEndpoint": runtime.Endpoint})
	n.Spec.Kubeconfig = n.CP.AdminKubeconfig() // it takes the other for the kubelet
	start("augment", "off", nil)
	n.Spec.NodeName, n.Spec.Kubeconfig = "observer", ""
	start("observe", "auto", nil)
	return running
}

// secretHash is that of "secret".
const secretHash = "$2a$04$uAz2gC.cg/8LgF.ZYgrsK.zCfvi0Mg6/HJBQ1.oCmLiMJahtWMctO"

// secured runs a nodeprobe that requires a certificate and a password, with a web
// configuration that promtool accepts too. It returns how Prometheus scrapes it.
func secured(t *testing.T) (scrapeConfig any) {
	t.Helper()
	dir := t.TempDir()
	cert, key, web := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "web.yml")
	// One that is good for 127.0.0.1.
	server := httptest.NewTLSServer(nil)
	pair := server.TLS.Certificates[0]
	server.Close()
	private := must.Get(x509.MarshalPKCS8PrivateKey(pair.PrivateKey))(t)
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, key: {Type: "PRIVATE KEY", Bytes: private}} {
		must.OK(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	}
	text := "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n  client_auth_type: RequireAnyClientCert\nbasic_auth_users:\n  prometheus: " + secretHash + "\n"
	must.OK(t, os.WriteFile(web, []byte(text), 0o600))
	promtool(t, nil, "check", "web-config", web)
	address := fmt.Sprintf("127.0.0.1:%d", must.Get(process.FreePorts(1))(t)[0])
	p := must.Get(process.Start(process.Spec{
		Path: build.ProductForTest(t), LogFile: filepath.Join(dir, "log"),
		Args: []string{"run", "--table=off", "--web.listen-address=" + address, "--web.config.file=" + web},
	}))(t)
	t.Cleanup(func() { p.Stop(20 * time.Second) })
	return map[string]any{
		"job_name": "secure", "scheme": "https",
		"tls_config":     map[string]string{"ca_file": cert, "cert_file": cert, "key_file": key},
		"basic_auth":     map[string]string{"username": "prometheus", "password": "secret"},
		"static_configs": []any{map[string]any{"targets": []string{address}, "labels": map[string]string{"instance": "secure", "job": "nodeprobe"}}},
	}
}

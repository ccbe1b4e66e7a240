package kube

import (
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// The environment that tests run in must not decide how they end.
func TestMain(m *testing.M) {
	for _, name := range []string{"KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"} {
		os.Unsetenv(name)
	}
	m.Run()
}

// kubeconfig is one with a cluster, a user, and a context of both.
func kubeconfig(cluster, user string) string {
	return `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {` + cluster + `}}]
users: [{name: u, user: {` + user + `}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`
}

const server = `server: "https://127.0.0.1:1"`

// A kubeconfig that cannot be used is one clear error that names the file.
func TestBadKubeconfig(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	good := kubeconfig(server, "token: t")
	for _, test := range []struct{ name, content, want string }{
		{"missing", "", "no such file or directory"},
		{"garbage", "garbage", "couldn't get version/kind"},
		{"binary", "\x00\x01\x02", "control characters are not allowed"},
		{"configuration of our own", "apiVersion: nodeprobe.dev/v1alpha1\nkind: NodeProbeConfiguration\n", "no kind \"NodeProbeConfiguration\""},
		{"nothing in it", "apiVersion: v1\nkind: Config\n", "there is no current-context"},
		{"no context", strings.ReplaceAll(good, "current-context: x", ""), "there is no current-context"},
		{"no such context", strings.ReplaceAll(good, "current-context: x", "current-context: other"), `there is no context "other"`},
		{"no such cluster", strings.ReplaceAll(good, "cluster: c,", "cluster: d,"), `there is no cluster "d", which context "x" names`},
		{"no such user", strings.ReplaceAll(good, "user: u}", "user: v}"), `there is no user "v", which context "x" names`},
		{"no server", kubeconfig("", "token: t"), `cluster "c" of context "x" has no server`},
		{"server that is none", kubeconfig(`server: "https://::"`, "token: t"), "connect to https://::: "},
		{"CA file missing", kubeconfig(server+", certificate-authority: ca.crt", "token: t"), "DIR/ca.crt: no such file or directory"},
		{"CA that is none", kubeconfig(server+", certificate-authority-data: Z2FyYmFnZQ==", "token: t"), "connect to https://127.0.0.1:1: unable to load root certificates"},
		{"token file missing", kubeconfig(server, "tokenFile: token"), "DIR/token: no such file or directory"},
		{"client certificate missing", kubeconfig(server, "client-certificate: a.crt, client-key: /a.key"), "DIR/a.crt: no such file or directory"},
		{"no such plugin", kubeconfig(server, "exec: {apiVersion: client.authentication.k8s.io/v1, command: no-such-plugin, interactiveMode: Never}"), "there is no credential plugin no-such-plugin"},
		{"no such plugin beside it", kubeconfig(server, "exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never}"), "there is no credential plugin DIR/plugin"},
		{"auth provider of old", kubeconfig(server, "auth-provider: {name: gcp}"), `no Auth Provider found for name "gcp"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "kubeconfig")
			if test.content != "" {
				if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, _, err := Config(path, "n", false, "v1")
			if err == nil {
				t.Fatal("no error")
			}
			text := strings.ReplaceAll(err.Error(), dir, "DIR")
			if !strings.Contains(text, "kubeconfig DIR/kubeconfig: ") || !strings.Contains(text, test.want) || strings.Contains(text, "\n") {
				t.Errorf("got %s\nwant a line with %s", text, test.want)
			}
		})
	}
}

// Neither a kubeconfig nor a pod: the error names what there is to use, and not
// client-go's variables.
func TestNoCredentials(t *testing.T) {
	_, _, err := Config("", "n", false, "v1")
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"--kubeconfig", "kubeconfig:", "service account", "mode observe"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: it does not name %s", err, want)
		}
	}
	if strings.Contains(err.Error(), "KUBERNETES_SERVICE") {
		t.Error(err)
	}
}

// A pod without a service account's token.
func TestNoToken(t *testing.T) {
	if _, err := os.Stat("/var/run/secrets/kubernetes.io/serviceaccount/token"); err == nil {
		t.Skip("this is a pod with a service account")
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "1")
	_, _, err := Config("", "n", false, "v1")
	if err == nil || !strings.Contains(err.Error(), "/var/run/secrets/kubernetes.io/serviceaccount/token: no such file") || !strings.Contains(err.Error(), "--kubeconfig") {
		t.Errorf("got %v", err)
	}
}

// Files that are named relative to the kubeconfig are found from anywhere, and what they
// hold is what is sent.
func TestKubeconfigWithFiles(t *testing.T) {
	var header http.Header
	api := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { header = r.Header.Clone() }))
	defer api.Close()
	dir := t.TempDir()
	path := filepath.Join(dir, "kubeconfig")
	for name, content := range map[string]string{
		path:                             kubeconfig(`server: "`+api.URL+`", certificate-authority: pki/ca.crt`, "tokenFile: pki/token"),
		filepath.Join(dir, "pki/token"):  "secret\n",
		filepath.Join(dir, "pki/ca.crt"): string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})),
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for impersonate, user := range map[bool]string{false: "", true: "system:node:n"} {
		cfg, origin, err := Config(path, "n", impersonate, "v1")
		if err != nil {
			t.Fatal(err)
		}
		client, err := rest.HTTPClientFor(cfg)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Get(cfg.Host)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		client.CloseIdleConnections()
		if origin != "kubeconfig "+path || cfg.QPS >= 0 || header.Get("Authorization") != "Bearer secret" || header.Get("User-Agent") != "nodeprobe/v1" ||
			header.Get("Impersonate-User") != user || header.Get("Impersonate-Group") != "" {
			t.Errorf("impersonate %t: %q, %v, having sent %v", impersonate, origin, cfg, header)
		}
	}
}

func TestFindable(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", "/no/such/directory"+string(filepath.ListSeparator)+dir)
	plugin := filepath.Join(dir, "plugin")
	if err := os.WriteFile(plugin, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]bool{
		"plugin": true, plugin: true, "other": false, filepath.Join(dir, "other"): false, dir: false,
	} {
		if got := findable(command); got != want {
			t.Errorf("findable(%q) = %v", command, got)
		}
	}
}

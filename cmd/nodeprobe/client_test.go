package main

import (
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

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
		{"configuration of our own", header, "no kind \"NodeProbeConfiguration\""},
		{"nothing in it", "apiVersion: v1\nkind: Config\n", "there is no current-context"},
		{"no context", strings.ReplaceAll(good, "current-context: x", ""), "there is no current-context"},
		{"no such context", strings.ReplaceAll(good, "current-context: x", "current-context: other"), `there is no context "other"`},
		{"no such cluster", strings.ReplaceAll(good, "cluster: c,", "cluster: d,"), `there is no cluster "d", which context "x" names`},
		{"no such user", strings.ReplaceAll(good, "user: u}", "user: v}"), `there is no user "v", whom context "x" names`},
		{"no server", kubeconfig("", "token: t"), `cluster "c" of context "x" has no server`},
		{"server that is none", kubeconfig(`server: "https://::"`, "token: t"), "connect to https://:::"},
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
			_, err := newAPIClient(path, "n", false)
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

// A pod without a service account, or a machine without a pod.
func TestNotInCluster(t *testing.T) {
	_, err := newAPIClient("", "n", false)
	if err == nil || !strings.HasPrefix(err.Error(), "no kubeconfig is given, and there is no service account to use instead: ") {
		t.Errorf("got %v", err)
	}
}

// Files that are named relative to the kubeconfig are found from anywhere, and
// what they say is what is sent.
func TestKubeconfigWithFiles(t *testing.T) {
	var header http.Header
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header = r.Header.Clone()
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n","uid":"1"}}`)
	}))
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
	client, err := newAPIClient(path, "n", false)
	if err != nil {
		t.Fatal(err)
	}
	node, err := client.nodes.Get(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	client.forNodes.reconnect()
	if node.UID != "1" || header.Get("Authorization") != "Bearer secret" || header.Get("User-Agent") != "nodeprobe/"+version() || header.Get("Impersonate-User") != "" {
		t.Errorf("got %+v, having sent %v", node, header)
	}
	if client, err = newAPIClient(path, "n", true); err != nil {
		t.Fatal(err)
	}
	if _, err := client.nodes.Get(t.Context(), "n"); err != nil {
		t.Fatal(err)
	}
	client.forNodes.reconnect()
	if header.Get("Authorization") != "Bearer secret" || header.Get("Impersonate-User") != "system:node:n" || header.Get("Impersonate-Group") != "" {
		t.Errorf("as the node it has sent %v", header)
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

// A token file on a disk that hangs keeps nobody waiting for long, and is read again
// when it answers.
func TestTokenFileThatHangs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	answer := hangingFile(t, path)
	f := &tokenFile{path: path}
	for range 3 { // waited for once
		if _, err := f.Token(); !errors.Is(err, deadline.ErrNoAnswer) || !strings.Contains(err.Error(), path) {
			t.Fatalf("error %v", err)
		}
	}
	answer("secret\n")
	eventually(t, "token", func() bool {
		token, err := f.Token()
		return err == nil && token.AccessToken == "secret" && token.Valid()
	})
}

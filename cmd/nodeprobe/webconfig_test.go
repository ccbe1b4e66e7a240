package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A web configuration that is wrong ends run, and config check, with the exit code of a
// wrong configuration and one line, which does not repeat what may be a password.
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
			if diff := cmp.Diff(wanted, nodeprobe(t, append(args, config)...), cmp.AllowUnexported(outcome{})); diff != "" {
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
	if got := nodeprobe(t, "config", "check", config); got.code != 0 || !strings.HasSuffix(got.stdout, ": ok\n") {
		t.Errorf("got %+v", got)
	}
}

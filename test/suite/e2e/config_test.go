package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

const header = "apiVersion: nodeprobe.dev/v1alpha1\nkind: NodeProbeConfiguration\n"

// runToEnd runs nodeprobe with the arguments, which it is to reject, and
// returns its exit code and what it wrote.
func runToEnd(t *testing.T, args ...string) (code int, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, build.ProductForTest(t), args...)
	cmd.Stdout, cmd.Stderr = &output, &output
	err := cmd.Run()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		t.Fatalf("nodeprobe %s: %v, want it to fail\n%s", strings.Join(args, " "), err, &output)
	}
	return exit.ExitCode(), output.String()
}

// A wrong configuration: exit code 2, and one line that says where and what.
func TestBadConfig(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds nodeprobe; -short is set")
	}
	for _, test := range []struct {
		name, config, want string // want is a pattern of what follows the file's name
	}{
		{"unknown field", header + "mode: own\nsampleIntervall: 1s\n", `:4: .*sampleIntervall.*`},
		{"unknown nested field", header + "registerWithTaints:\n- key: a\n  effect: NoSchedule\n  effekt: NoSchedule\n", `:6: .*effekt.*`},
		{"field given twice", header + "mode: own\nmode: observe\n", `:4: .*mode.*`},
		{"two documents", header + "---\n" + header, `:3: a second document.*`},
		{"not YAML", header + "mode: [\n", `:\d+: .*`},
		{"wrong type", header + "nodeLeaseDurationSeconds: soon\n", `:3: .*soon.*`},
		{"no kind", "apiVersion: nodeprobe.dev/v1alpha1\n", `: kind: "" is not "NodeProbeConfiguration"`},
		{"foreign kind", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: NodeProbeConfiguration\n", `:1: apiVersion: .*`},
		{"unknown mode", header + "mode: both\n", `:3: mode: "both" is not .*`},
		{"more than all", header + "evictionHard:\n  memory.available: 110%\n", `:4: evictionHard\[memory.available\]: .*110%.*`},
		{"no such signal", header + "evictionHard:\n  memory.free: 1Gi\n", `:4: evictionHard\[memory.free\]: .*`},
		{"soft without grace", header + "evictionSoft:\n  memory.available: 1Gi\n", `:4: evictionSoft\[memory.available\]: .*grace period.*`},
		{"too often", header + "sampleInterval: 1ms\n", `:3: sampleInterval: 1ms is less than 100ms`},
		{"relative path", header + "rootDirectory: var/lib\n", `:3: rootDirectory: .*`},
		{"not an address", header + "nodeIP: 300.0.0.1\n", `:3: nodeIP: .*300.0.0.1.*`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "config.yaml")
			must.OK(t, os.WriteFile(file, []byte(test.config), 0o600))
			want := regexp.MustCompile(`^nodeprobe: ` + regexp.QuoteMeta(file) + test.want + "\n$")
			for _, args := range [][]string{{"run", "--config", file}, {"config", "check", file}, {"snapshot", "--config", file}} {
				if code, output := runToEnd(t, args...); code != 2 || !want.MatchString(output) || strings.Count(output, "\n") != 1 {
					t.Errorf("nodeprobe %s: exit code %d, want 2 and one line like %s:\n%s", args[0], code, want, output)
				}
			}
		})
	}
}

// Wrong arguments are wrong usage too.
func TestBadArguments(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds nodeprobe; -short is set")
	}
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "--config", missing}, missing},
		{[]string{"run", "--mode", "both"}, "mode"},
		{[]string{"run", "--hostname-override", "a_b"}, "nodeName"},
		{[]string{"run", "--no-such-flag"}, "no-such-flag"},
		{[]string{"run", "now"}, "now"},
		{[]string{"snapshot", "-o", "xml"}, "xml"},
		{[]string{"config", "check"}, "arg"},
	} {
		code, output := runToEnd(t, test.args...)
		if code != 2 || !strings.Contains(output, test.want) || strings.Count(output, "\n") != 1 {
			t.Errorf("nodeprobe %s: exit code %d, want 2 and one line that names %q:\n%s", strings.Join(test.args, " "), code, test.want, output)
		}
	}
}

const cluster = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {SERVER}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

// A kubeconfig that cannot be used: exit code 1, and a last line that names it.
func TestBadKubeconfig(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds nodeprobe; -short is set")
	}
	for _, test := range []struct{ name, content, want string }{
		{"missing", "", "no such file or directory"},
		{"garbage", "\x00\x01garbage", "read kubeconfig"},
		{"not a kubeconfig", header, "read kubeconfig"},
		{"empty", "apiVersion: v1\nkind: Config\n", "read kubeconfig"},
		{"without a server", strings.ReplaceAll(cluster, "SERVER", ""), "no server"},
		{"no such context", strings.ReplaceAll(cluster, "current-context: x", "current-context: nowhere"), `nowhere`},
		{"bad certificate", strings.ReplaceAll(cluster, "SERVER", "server: 'https://127.0.0.1:1', certificate-authority-data: Z2FyYmFnZQ=="), "connect to https://127.0.0.1:1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "kubeconfig")
			if test.content != "" {
				must.OK(t, os.WriteFile(file, []byte(test.content), 0o600))
			}
			code, output := runToEnd(t, "run", "--mode", "own", "--kubeconfig", file, "--web.listen-address", "127.0.0.1:0")
			var said []string
			for line := range strings.Lines(output) {
				if strings.HasPrefix(line, "nodeprobe: ") {
					said = append(said, line)
				}
			}
			if code != 1 || len(said) != 1 || !strings.Contains(said[0], test.want) || !strings.HasSuffix(output, said[0]) {
				t.Errorf("exit code %d, want 1 and one last line with %q:\n%s", code, test.want, output)
			}
		})
	}
}

// An API server that cannot be reached may be there later: nodeprobe runs.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds nodeprobe; -short is set")
	}
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	// Port 1 is privileged, and nobody listens there.
	must.OK(t, os.WriteFile(kubeconfig, []byte(strings.ReplaceAll(cluster, "SERVER", "server: 'http://127.0.0.1:1'")), 0o600))
	n := &node{t: t, name: "unreachable", spec: agent.Spec{
		Binary: build.ProductForTest(t), Dir: dir, NodeName: "unreachable", Kubeconfig: kubeconfig, Config: agent.Own(),
	}}
	a := n.start()
	r := waitLogged(t, a, "node status is not posted", 0)
	if !strings.Contains(r.Line, "127.0.0.1:1") || !strings.Contains(r.Line, "connection refused") {
		t.Errorf("neither server nor reason: %s", r.Line)
	}
	time.Sleep(2 * time.Second) // several more attempts
	if again := logged(t, a, r.Msg); len(again) != 1 {
		t.Errorf("logged %d times: %s", len(again), r.Line)
	}
	for path, want := range map[string]int{"/livez": 200, "/metrics": 200, "/readyz": 503} {
		must.Note(t, wantCode(a, path, want))
	}
	a.Stop()
	select {
	case <-a.Exited():
	default:
		t.Error("nodeprobe did not stop")
	}
	if len(logged(t, a, "nodeprobe has stopped")) != 1 {
		t.Error("nodeprobe had to be killed")
	}
}

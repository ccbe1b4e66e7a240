package e2e

import (
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
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

const (
	header  = "apiVersion: nodeprobe.dev/v1alpha1\nkind: NodeProbeConfiguration\n"
	cluster = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {SERVER}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`
)

// What is wrong with a configuration, a kubeconfig or the arguments ends nodeprobe with
// an exit code and one last line that says where and what.
func TestBadStart(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds nodeprobe; -short is set")
	}
	const config, arguments, kubeconfig = "config", "arguments", "kubeconfig"
	for _, test := range []struct {
		kind, name string
		text       string // of the file, or the arguments with PATH for its path
		want       string // a pattern of what follows "nodeprobe: ", and of a configuration of what follows the file's name
	}{
		{config, "unknown field", header + "mode: own\nsampleIntervall: 1s\n", `:4: .*sampleIntervall.*`},
		{config, "unknown nested field", header + "registerWithTaints:\n- key: a\n  effect: NoSchedule\n  effekt: NoSchedule\n", `:6: .*effekt.*`},
		{config, "field given twice", header + "mode: own\nmode: observe\n", `:4: .*mode.*`},
		{config, "two documents", header + "---\n" + header, `:3: a second document.*`},
		{config, "not YAML", header + "mode: [\n", `:\d+: .*`},
		{config, "wrong type", header + "nodeLeaseDurationSeconds: soon\n", `:3: .*soon.*`},
		{config, "no kind", "apiVersion: nodeprobe.dev/v1alpha1\n", `: kind: "" is not "NodeProbeConfiguration"`},
		{config, "foreign kind", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: NodeProbeConfiguration\n", `:1: apiVersion: .*`},
		{config, "unknown mode", header + "mode: both\n", `:3: mode: "both" is not .*`},
		{config, "more than all", header + "evictionHard:\n  memory.available: 110%\n", `:4: evictionHard\[memory.available\]: .*110%.*`},
		{config, "no such signal", header + "evictionHard:\n  memory.free: 1Gi\n", `:4: evictionHard\[memory.free\]: .*`},
		{config, "soft without grace", header + "evictionSoft:\n  memory.available: 1Gi\n", `:4: evictionSoft\[memory.available\]: .*grace period.*`},
		{config, "too often", header + "sampleInterval: 1ms\n", `:3: sampleInterval: 1ms is less than 100ms`},
		{config, "relative path", header + "rootDirectory: var/lib\n", `:3: rootDirectory: .*`},
		{config, "not an address", header + "nodeIP: 300.0.0.1\n", `:3: nodeIP: .*300.0.0.1.*`},

		{arguments, "missing file", "run --config PATH.missing", `.*PATH\.missing.*`},
		{arguments, "unknown mode", "run --mode both", `.*mode.*`},
		{arguments, "not a name", "run --hostname-override a_b", `.*nodeName.*`},
		{arguments, "unknown flag", "run --no-such-flag", `.*no-such-flag.*`},
		{arguments, "an argument", "run now", `.*now.*`},
		{arguments, "unknown format", "snapshot -o xml", `.*xml.*`},
		{arguments, "no argument", "config check", `give one FILE to check, not 0; .*`},

		{kubeconfig, "missing", "", `.*no such file or directory.*`},
		{kubeconfig, "garbage", "\x00\x01garbage", `.*read kubeconfig.*`},
		{kubeconfig, "not a kubeconfig", header, `.*read kubeconfig.*`},
		{kubeconfig, "empty", "apiVersion: v1\nkind: Config\n", `.*read kubeconfig.*`},
		{kubeconfig, "without a server", strings.ReplaceAll(cluster, "SERVER", ""), `.*no server.*`},
		{kubeconfig, "no such context", strings.ReplaceAll(cluster, "current-context: x", "current-context: nowhere"), `.*nowhere.*`},
		{kubeconfig, "bad certificate", strings.ReplaceAll(cluster, "SERVER", "server: 'https://127.0.0.1:1', certificate-authority-data: Z2FyYmFnZQ=="), `.*connect to https://127.0.0.1:1.*`},
	} {
		t.Run(test.kind+", "+test.name, func(t *testing.T) {
			t.Parallel()
			file, code := filepath.Join(t.TempDir(), "file"), 2
			var commands [][]string
			want := strings.ReplaceAll(test.want, "PATH", regexp.QuoteMeta(file))
			switch test.kind {
			case config:
				want = regexp.QuoteMeta(file) + want
				commands = [][]string{{"run", "--config", file}, {"config", "check", file}, {"snapshot", "--config", file}}
			case arguments:
				commands = [][]string{strings.Fields(strings.ReplaceAll(test.text, "PATH", file))}
			case kubeconfig:
				code = 1
				commands = [][]string{{"run", "--mode", "own", "--kubeconfig", file, "--web.listen-address", "127.0.0.1:0"}}
			}
			if test.kind != arguments && test.text != "" {
				must.OK(t, os.WriteFile(file, []byte(test.text), 0o600))
			}
			for _, args := range commands {
				ctx, cancel := context.WithTimeout(t.Context(), stage.Patience)
				out, err := exec.CommandContext(ctx, build.ProductForTest(t), args...).CombinedOutput()
				cancel()
				exit, ok := errors.AsType[*exec.ExitError](err)
				said := strings.SplitAfter(strings.TrimSuffix(string(out), "\n"), "\n")
				last := said[len(said)-1]
				if !ok || exit.ExitCode() != code || !regexp.MustCompile(`^nodeprobe: `+want+"$").MatchString(last) ||
					code == 2 && len(said) > 1 || strings.Count(string(out), "nodeprobe: ") > 1 {
					t.Errorf("nodeprobe %s: %v, want exit code %d and one last line like %s:\n%s", args[0], err, code, want, out)
				}
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
	a := agent.StartForTest(t, agent.Spec{
		Binary: build.ProductForTest(t), Dir: dir, NodeName: "unreachable", Kubeconfig: kubeconfig, Config: agent.Own(),
	})
	r := stage.WaitLogged(t, a, notPosted, 0)
	if !strings.Contains(r.Line, "127.0.0.1:1") || !strings.Contains(r.Line, "connection refused") {
		t.Errorf("neither server nor reason: %s", r.Line)
	}
	time.Sleep(2 * time.Second) // several more attempts
	if again := stage.Logged(t, a, r.Msg); len(again) != 1 {
		t.Errorf("logged %d times: %s", len(again), r.Line)
	}
	for path, want := range map[string]int{"/livez": 200, "/metrics": 200, "/readyz": 503} {
		must.Note(t, stage.Code(a, path, want))
	}
	a.Stop()
	if len(stage.Logged(t, a, "nodeprobe has stopped")) != 1 {
		t.Error("nodeprobe had to be killed")
	}
}

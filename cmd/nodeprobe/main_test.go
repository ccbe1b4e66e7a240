package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

var update = flag.Bool("update", false, "write the files in testdata; read the diff")

// The environment that tests run in must not decide how they end.
func TestMain(m *testing.M) {
	for _, name := range []string{"NODE_NAME", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"} {
		os.Unsetenv(name)
	}
	m.Run()
}

// outcome is what a command line comes to.
type outcome struct {
	code           int
	stdout, stderr string
}

// command runs a command line in this process.
func command(t *testing.T, args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, &stdout, &stderr)
	return outcome{code, stdout.String(), stderr.String()}
}

// golden compares got with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs; is it right? -update writes it (-want +got):\n%s", path, diff)
	}
}

// The help of every command is an interface: people read it, and the manual in
// doc.go repeats it.
func TestHelp(t *testing.T) {
	var b strings.Builder
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		args := append(strings.Fields(cmd.CommandPath())[1:], "--help")
		got := command(t, args...)
		if got.code != 0 || got.stderr != "" {
			t.Errorf("%v: %+v", args, got)
		}
		fmt.Fprintf(&b, "$ nodeprobe %s\n%s\n", strings.Join(args, " "), got.stdout)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRootCommand())
	golden(t, "help.txt", b.String())
}

func TestHelpAnyHow(t *testing.T) {
	for _, test := range []struct{ args, same string }{
		{"", "--help"},
		{"help", "--help"},
		{"help run", "run --help"},
		{"help config check", "config check --help"},
		{"config", "config --help"},
	} {
		got, want := command(t, strings.Fields(test.args)...), command(t, strings.Fields(test.same)...)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(outcome{})); diff != "" {
			t.Errorf("%q is not %q:\n%s", test.args, test.same, diff)
		}
	}
}

// The manual must have every flag and every command.
func TestManual(t *testing.T) {
	manual, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	help, err := os.ReadFile("testdata/help.txt")
	if err != nil {
		t.Fatal(err)
	}
	for word := range strings.FieldsSeq(string(help)) {
		if name, ok := strings.CutPrefix(strings.Trim(word, `",`), "--"); ok && name != "help" && name != "version" &&
			!strings.Contains(string(manual), "--"+name) {
			t.Errorf("doc.go does not have the flag --%s", name)
		}
	}
	for _, cmd := range newRootCommand().Commands() {
		if !strings.Contains(string(manual), "nodeprobe "+cmd.Name()) {
			t.Errorf("doc.go does not have the command %s", cmd.Name())
		}
	}
}

// Wrong usage is one line with what is wrong and where to look, and exit
// code 2.
func TestUsage(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"bogus", `unknown command "bogus" for "nodeprobe"; see nodeprobe --help`},
		{"snapshto", `unknown command "snapshto" for "nodeprobe"; did you mean "nodeprobe snapshot"?`},
		{"config chek", `unknown command "chek" for "nodeprobe config"; did you mean "nodeprobe config check"?`},
		{"help bogus", `unknown command "bogus" for "nodeprobe"; see nodeprobe --help`},
		{"help config bogus", `unknown command "bogus" for "nodeprobe config"; see nodeprobe config --help`},
		{"--colour", `unknown flag: --colour; see nodeprobe --help`},
		{"run --colour", `unknown flag: --colour; see nodeprobe run --help`},
		{"run -o", `unknown shorthand flag: 'o' in -o; see nodeprobe run --help`},
		{"run --mode", `flag needs an argument: --mode; see nodeprobe run --help`},
		{"run now", `unknown command "now" for "nodeprobe run"; see nodeprobe run --help`},
		{"version x", `unknown command "x" for "nodeprobe version"; see nodeprobe version --help`},
		{"config check", `give one FILE to check, not 0; see nodeprobe config check --help`},
		{"config check a b", `give one FILE to check, not 2; see nodeprobe config check --help`},
		{"config default x", `unknown command "x" for "nodeprobe config default"; see nodeprobe config default --help`},
		{"run --table=maybe", `--table: "maybe" is not one of auto, on, off`},
		{"snapshot -o xml", `--output: "xml" is not one of table, yaml, json`},
		{"preflight --output=yaml", `--output: "yaml" is not one of table, json`},
		{"run --path.procfs=proc", `--path.procfs: "proc" is not an absolute path`},
		{"snapshot --path.sysfs=", `--path.sysfs: "" is not an absolute path`},
		{"preflight --path.rootfs=..", `--path.rootfs: ".." is not an absolute path`},
	} {
		t.Run(test.args, func(t *testing.T) {
			got := command(t, strings.Fields(test.args)...)
			want := outcome{exitUsage, "", "nodeprobe: " + test.want + "\n"}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(outcome{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A wrong file or value ends whatever command reads it, with one last line that names
// file and field, and with an exit code that tells a wrong configuration from a wrong
// kubeconfig.
func TestBadStart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(header+"sampleIntervall: 1s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	own := strings.Join(append(flags(testtree.New(t, nil)), "--config", writeConfig(t, ""), "--web.listen-address= --mode=own"), " ")
	for _, test := range []struct {
		args string
		code int
		want string // how the last line goes on
	}{
		{"run --config " + file, exitUsage, file + ":3: sampleIntervall: unknown field"},
		{"config check " + file, exitUsage, file + ":3: sampleIntervall: unknown field"},
		{"snapshot --config " + file, exitUsage, file + ":3: sampleIntervall: unknown field"},
		{"run --config " + file + ".missing", exitUsage, "read configuration: open " + file + ".missing: no such file or directory"},
		{"run --mode both", exitUsage, `--mode: mode: "both" is not `},
		{"run --hostname-override a_b", exitUsage, `--hostname-override: nodeName: "a_b" is not `},
		{"run " + own + " --kubeconfig " + file, exitFailed, "read kubeconfig " + file + ": "},
		{"run " + own + " --kubeconfig " + file + ".missing", exitFailed, "read kubeconfig " + file + ".missing: "},
	} {
		got := command(t, strings.Fields(test.args)...)
		log, last, _ := strings.Cut(got.stderr, "nodeprobe: ")
		if got.code != test.code || !strings.HasPrefix(last, test.want) || strings.Count(last, "\n") != 1 || test.code == exitUsage && log != "" {
			t.Errorf("%s: exit code %d, want %d and a last line %q:\n%s", test.args, got.code, test.code, test.want, got.stderr)
		}
	}
}

func TestVersion(t *testing.T) {
	got := command(t, "version")
	if got.code != 0 || !strings.HasPrefix(got.stdout, "nodeprobe "+release+" (commit ") || strings.Count(got.stdout, "\n") != 1 {
		t.Errorf("got %+v", got)
	}
	if flag := command(t, "--version"); flag != got {
		t.Errorf("--version: got %+v, want %+v", flag, got)
	}
}

// Controllers parse the version that a Node shows for its kubelet.
func TestVersionParses(t *testing.T) {
	for _, test := range []string{"v0.1.0-dev", "v1.2.3", "v1.2.3-rc.1", "v1.2.3+dirty", "v1.2.3-4-g0123abc+dirty.5"} {
		t.Run(test, func(t *testing.T) {
			was := release
			defer func() { release = was }()
			release = test
			v, err := utilversion.ParseSemantic(version())
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(v.BuildMetadata(), "nodeprobe") {
				t.Errorf("%s does not say whose version it is", version())
			}
		})
	}
}

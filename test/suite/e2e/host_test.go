package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// badHost is one of testdata/hosts.yaml, which says what the fields mean.
type badHost struct {
	Name, Mounts, Arg, BPF, Finding, Msg, Says, Why string
	Unknown                                         []string // of our conditions
	Ready                                           bool
}

// A pod that lacks something of its node: preflight and the log name it and say
// what to change, the conditions that it costs are Unknown and say why, and the
// others are as ever.
func TestBadHost(t *testing.T) {
	t.Parallel()
	need.Root(t)
	need.Command(t, "unshare", "util-linux")
	need.Command(t, "setpriv", "util-linux")
	cp := controlplane.StartForTest(t)
	var tests []badHost
	must.OK(t, yaml.UnmarshalStrict(must.Get(os.ReadFile("testdata/hosts.yaml"))(t), &tests))
	for _, test := range tests {
		t.Run(test.Name, func(t *testing.T) {
			t.Parallel()
			n, _ := newBeside(t, cp)
			n.addForeign()
			n.Spec.Config = n.Spec.Config.With(agent.Config{
				"evictionHard": agent.Hard(map[string]string{"memory.available": "1Mi", "nodefs.available": "1Mi", "pid.available": "1%"}),
			})
			if test.BPF != "" {
				n.Spec.Config["bpf"] = test.BPF
			}
			paths := []string{"EMPTY", t.TempDir()}
			if strings.Contains(test.Mounts, "THREADED") {
				paths = append(paths, "THREADED", threadedCgroup(t)+"/cgroup.procs")
			}
			fill := strings.NewReplacer(paths...).Replace
			n.Spec.Binary = inMounts(t, n.Spec.Binary, fill(test.Mounts))
			if test.Arg != "" {
				n.Spec.Args = []string{fill(test.Arg)}
			}
			a := n.Start()
			n.checkPreflight(test.Finding)

			stage.Until(t, "the log says "+test.Msg+": "+test.Says, func() bool {
				return slices.ContainsFunc(stage.Logged(t, a, test.Msg), func(r agent.Record) bool { return strings.Contains(r.Line, test.Says) })
			})
			if test.Ready || test.Unknown == nil {
				n.WaitReady(a)
			} else {
				stage.WaitUnready(t, a, "could not be judged yet: ")
				stage.WaitUnready(t, a, test.Why)
			}
			var unknown []corev1.NodeConditionType
			for _, kind := range test.Unknown {
				unknown = append(unknown, corev1.NodeConditionType("nodeprobe.dev/"+kind))
			}
			n.waitOurs(unknown...)
			for _, kind := range unknown {
				n.WaitCondition(kind, corev1.ConditionUnknown)
				if c := nodewatch.Condition(n.MustGet(), kind); c.Reason != "SignalUnavailable" || !strings.Contains(c.Message, test.Why) {
					t.Errorf("%s: %s: %s", kind, c.Reason, c.Message)
				}
			}
			said := map[string]bool{}
			for _, r := range stage.Logged(t, a, "") {
				_, text, _ := strings.Cut(r.Line, ",") // behind the time
				if r.Bad() && said[text] {
					t.Errorf("logged more than once: %s", r.Line)
				}
				said[text] = true
			}
			n.wantForeign()
		})
	}
}

// threadedCgroup makes a cgroup whose cgroup.procs can be opened, but not read: the
// kernel answers EOPNOTSUPP.
func threadedCgroup(t *testing.T) string {
	t.Helper()
	parent := "/sys/fs/cgroup/unified"
	if _, err := os.Stat(parent); err != nil {
		parent = "/sys/fs/cgroup"
	}
	dir := filepath.Join(parent, fmt.Sprint("nodeprobe-test-", os.Getpid()))
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		t.Cleanup(func() { os.Remove(dir) })
		err = os.WriteFile(filepath.Join(dir, "cgroup.type"), []byte("threaded"), 0)
	}
	must.OK(t, err)
	return dir
}

// setup is what the scripts begin with.
const setup = `set -e
run=
read_only() {
	for m in $(awk -v d="$1" '$5 == d || index($5, d "/") == 1 {print $5}' /proc/self/mountinfo); do mount -o remount,bind,ro $m; done
}
`

// inMounts writes a program that runs another one, in the same process, where a
// script has mounted what it likes.
func inMounts(t *testing.T, program, script string) string {
	t.Helper()
	dir := t.TempDir()
	// A child that is forked meanwhile has the files open for writing until it runs its
	// own program, and what is open for writing cannot be run.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	mounts, wrapper := filepath.Join(dir, "mounts"), filepath.Join(dir, "nodeprobe")
	for file, text := range map[string]string{
		mounts:  setup + script + "\nexec $run " + program + ` "$@"` + "\n",
		wrapper: "#!/bin/sh\nexec unshare --mount --propagation private sh " + mounts + ` "$@"` + "\n",
	} {
		must.OK(t, os.WriteFile(file, []byte(text), 0o755))
	}
	return wrapper
}

// checkPreflight looks for a line among those that nodeprobe preflight prints for the
// configuration of the agent that was started.
func (n *node) checkPreflight(want string) {
	n.T.Helper()
	args := append([]string{"preflight", "-o", "json", "--config", filepath.Join(n.Spec.Dir, n.Spec.NodeName+".yaml")}, n.Spec.Args...)
	out, err := exec.CommandContext(n.T.Context(), n.Spec.Binary, args...).Output()
	// 3: something is missing.
	if exit, is := errors.AsType[*exec.ExitError](err); err != nil && (!is || exit.ExitCode() != 3) {
		n.T.Fatalf("nodeprobe preflight: %v", err)
	}
	var lines []struct{ What, Outcome, Detail, Remedy string }
	if err := json.Unmarshal(out, &lines); err != nil {
		n.T.Fatalf("%v: %s", err, out)
	}
	var all []string
	for _, l := range lines {
		if l.Outcome == "ok" {
			l.Remedy = l.Detail
		}
		all = append(all, l.Outcome+" "+l.What+" "+l.Remedy)
	}
	if !slices.ContainsFunc(all, func(line string) bool { return strings.HasPrefix(line, want) }) {
		n.T.Errorf("nodeprobe preflight does not say %q; it says\n%s", want, strings.Join(all, "\n"))
	}
}

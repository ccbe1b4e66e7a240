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

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// A pod that lacks something of its node: preflight and the log name it and say
// what to change, the conditions that it costs are Unknown and say why, and the
// others are as ever.
func TestBadHost(t *testing.T) {
	t.Parallel()
	need.Root(t)
	need.Command(t, "unshare", "util-linux")
	need.Command(t, "setpriv", "util-linux")
	cp := controlplane.StartForTest(t)
	const (
		wrongPath = "path does not lead to the node"
		noSource  = "source cannot be read"
		noHook    = "kernel signal is missing"
		noWake    = "no notifications from source"
	)
	type kinds = []corev1.NodeConditionType
	procfs, contention := kinds{ourMemory, ourPIDs, ourMemoryContention, ourIOContention, ourReadonly}, kinds{ourMemoryContention, ourIOContention}
	for _, test := range []struct {
		name string
		// mounts is a shell script in a mount namespace of its own; EMPTY is an empty
		// directory, and THREADED a file that answers reads as a kernel with psi=0
		// does. It may set run to what is to run nodeprobe.
		mounts  string
		arg     string
		bpf     string // "off" if empty
		finding string // a line of preflight: outcome, subject, and remedy or what is there
		msg     string // of a line of the log
		says    string // in that line
		unknown kinds
		why     string // in the messages of these, and why it is not ready
		ready   bool   // all the same: it is the machine that lacks it
	}{
		{
			name: "empty procfs", arg: "--path.procfs=EMPTY", finding: "fails --path.procfs mount the node's /proc there",
			msg: wrongPath, says: ` is empty`, unknown: procfs, why: "no such file or directory",
		},
		{
			name: "empty sysfs", arg: "--path.sysfs=EMPTY", finding: "fails memory cgroup see --path.sysfs",
			msg: wrongPath, says: `"flag":"--path.sysfs"`, unknown: kinds{ourMemory}, why: "find memory controller below ",
		},
		{
			name: "no rootfs", arg: "--path.rootfs=/nowhere", finding: "fails --path.rootfs mount the node's / there",
			msg: wrongPath, says: `"flag":"--path.rootfs"`, unknown: kinds{ourDisk, ourReadonly}, why: "open /nowhere: no such file or directory",
		},
		{
			name: "empty rootfs", arg: "--path.rootfs=EMPTY", finding: "fails --path.rootfs mount the node's / there",
			msg: wrongPath, says: ` is empty`, unknown: kinds{ourDisk, ourReadonly}, why: "it is empty, and so not the root of the node",
		},
		{
			name: "read-only cgroups", mounts: readOnlyBelow("/sys/fs/cgroup"), finding: "ok memory cgroup v",
			msg: "nodeprobe is running",
		},
		{
			name: "read-only sysfs", mounts: readOnlyBelow("/sys"), bpf: "auto", finding: "ok hook tp_btf/task_newtask signal tasks",
			msg: "kernel programs attached",
		},
		{
			name: "no cgroups", mounts: "mount --bind EMPTY /sys/fs/cgroup", finding: "fails memory cgroup mount the host's /sys/fs/cgroup",
			msg: noSource, says: "find memory controller below /sys/fs/cgroup", unknown: kinds{ourMemory}, why: "find memory controller below /sys/fs/cgroup",
		},
		{
			name: "no tracefs", mounts: "mount --bind EMPTY /sys/kernel/tracing; mount --bind EMPTY /sys/kernel/debug", bpf: "auto",
			finding: "ok hook tp_btf/mark_victim signal oom", msg: "kernel programs attached",
		},
		{
			name: "no BTF", mounts: "mount --bind EMPTY /sys/kernel/btf", bpf: "auto", finding: "missing kernel types (BTF) use a kernel built with CONFIG_DEBUG_INFO_BTF",
			msg: noHook, says: "use a kernel built with CONFIG_DEBUG_INFO_BTF",
		},
		{
			name: "BPF forbidden", mounts: "run='setpriv --bounding-set -bpf,-perfmon,-sys_admin'", bpf: "auto", finding: "missing CAP_BPF add CAP_BPF, or run as root or privileged",
			msg: noHook, says: "lacks CAP_BPF and CAP_PERFMON",
		},
		{
			name: "hidepid", mounts: "mount -t proc -o hidepid=2,gid=65534 proc /proc; run='setpriv --bounding-set -sys_ptrace'", finding: "ok wake-up mounts /proc/self/mountinfo",
			msg: "nodeprobe is running",
		},
		{
			name: "PSI turned off", mounts: "for r in cpu memory io; do mount --bind THREADED /proc/pressure/$r; done", finding: "missing pressure_memory boot with psi=1",
			msg: "no pressure stall information", says: `"level":"INFO"`, ready: true, unknown: contention, why: "boot with psi=1",
		},
		{
			name: "PSI hidden", mounts: "mount --bind EMPTY /proc/pressure", finding: "missing pressure_memory boot with psi=1",
			msg: noSource, says: "open /proc/pressure/memory", unknown: contention, why: "open /proc/pressure/",
		},
		{
			name: "read-only procfs", mounts: "mount --bind /proc /proc; mount -o remount,bind,ro /proc", finding: "missing wake-up pressure_memory_some mount /proc read-write",
			msg: noWake, says: "mount /proc read-write",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n, _ := newBeside(t, cp)
			n.addForeign()
			n.Spec.Config = n.Spec.Config.With(agent.Config{
				"evictionHard": agent.Hard(map[string]string{"memory.available": "1Mi", "nodefs.available": "1Mi", "pid.available": "1%"}),
			})
			if test.bpf != "" {
				n.Spec.Config["bpf"] = test.bpf
			}
			paths := []string{"EMPTY", t.TempDir()}
			if strings.Contains(test.mounts, "THREADED") {
				paths = append(paths, "THREADED", threadedCgroup(t)+"/cgroup.procs")
			}
			fill := strings.NewReplacer(paths...).Replace
			n.Spec.Binary = inMounts(t, n.Spec.Binary, fill(test.mounts))
			if test.arg != "" {
				n.Spec.Args = []string{fill(test.arg)}
			}
			a := n.Start()
			n.checkPreflight(test.finding)

			stage.Until(t, "the log says "+test.msg+": "+test.says, func() bool {
				return slices.ContainsFunc(stage.Logged(t, a, test.msg), func(r agent.Record) bool { return strings.Contains(r.Line, test.says) })
			})
			if test.ready || test.unknown == nil {
				n.WaitReady(a)
			} else {
				stage.WaitUnready(t, a, "could not be judged yet: ")
				stage.WaitUnready(t, a, test.why)
			}
			n.waitOurs(test.unknown...)
			for _, kind := range test.unknown {
				n.WaitCondition(kind, corev1.ConditionUnknown)
				if c := nodewatch.Condition(n.MustGet(), kind); c.Reason != "SignalUnavailable" || !strings.Contains(c.Message, test.why) {
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

// readOnlyBelow is a script that makes all mounts below a directory read-only.
func readOnlyBelow(dir string) string {
	return fmt.Sprintf(`for m in $(awk '$5 == "%[1]s" || index($5, "%[1]s/") == 1 {print $5}' /proc/self/mountinfo); do mount -o remount,bind,ro $m; done`, dir)
}

// inMounts writes a program that runs another one, in the same process, where a
// script has mounted what it likes.
func inMounts(t *testing.T, program, script string) string {
	t.Helper()
	dir := t.TempDir()
	// A child that is forked meanwhile has the files open for writing until it runs its
	// own program, and what is open for writing cannot be run.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	setup := filepath.Join(dir, "setup")
	wrapper := filepath.Join(dir, "nodeprobe")
	for file, text := range map[string]string{
		setup:   "set -e\nrun=\n" + script + "\nexec $run " + program + ` "$@"` + "\n",
		wrapper: "#!/bin/sh\nexec unshare --mount --propagation private sh " + setup + ` "$@"` + "\n",
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

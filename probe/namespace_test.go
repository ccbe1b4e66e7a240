package probe

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/cgroup"
	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

	"golang.org/x/sys/unix"
)

func TestForeignPIDMax(t *testing.T) {
	for _, test := range []struct {
		name, ns, release string
		foreign           bool
	}{
		{"the node's", "pid:[4026531836]", "6.18.0-1-amd64", false},
		{"a container's", "pid:[4026532178]", "6.18.0-1-amd64", true},
		{"a container's, the first such kernel", "pid:[4026532178]", "6.14.0", true},
		{"a container's, where pid_max is the machine's", "pid:[4026532178]", "6.12.57+deb13-amd64", false},
		{"a container's, an old kernel", "pid:[4026532178]", "5.15.0", false},
		{"a container's, a new kernel", "pid:[4026532178]", "7.0.0-rc1", true},
		{"a container's, a kernel without a number", "pid:[4026532178]", "next", true},
		{"no namespaces", "", "6.18.0", false},
	} {
		n := machine{}.boot(t)
		if test.ns != "" {
			n.Write(t, "proc/self/ns/x", "")
			probetest.Must(t, os.Symlink(test.ns, n.Path("proc/self/ns/pid")))
		}
		if err := foreignPIDMax(n.Path("proc"), test.release); errors.Is(err, ErrPIDNamespace) != test.foreign {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// Where the node is a container itself, nobody can put that right: its process 1 is in
// the same namespace.
func TestForeignPIDMaxOfNestedNode(t *testing.T) {
	for first, nested := range map[string]bool{"pid:[4026532178]": true, "pid:[4026531836]": false, "pid:[4026532177]": false, "": false} {
		n := machine{"proc/self/ns/x": "", "proc/1/ns/x": ""}.boot(t)
		probetest.Must(t, os.Symlink("pid:[4026532178]", n.Path("proc/self/ns/pid")))
		if first != "" {
			probetest.Must(t, os.Symlink(first, n.Path("proc/1/ns/pid")))
		}
		err := foreignPIDMax(n.Path("proc"), "6.18.0")
		probetest.CheckError(t, err, ErrPIDNamespace)
		if errors.Is(err, errors.ErrUnsupported) != nested {
			t.Errorf("process 1 in %q: %v", first, err)
		}
	}
}

// In a namespace, what pid_max says is nothing about the node: no limit is better than
// a wrong one.
func TestPIDNamespaceHasNoLimit(t *testing.T) {
	n := fullMachine.with(machine{"proc/self/ns/x": ""}).boot(t)
	probetest.Must(t, os.Symlink("pid:[4026532178]", n.Path("proc/self/ns/pid")))
	s := n.sampler(t)
	got := *s.Sample()
	if release, err := kernelRelease(); foreignPIDMax(n.Path("proc"), release) == nil {
		t.Skipf("on this kernel pid_max is the machine's: %s, %v", release, err)
	}
	err := got.Errors[SourceTaskLimit]
	probetest.CheckError(t, err, ErrPIDNamespace)
	want := fullSnapshot()
	want.Errors[SourceTaskLimit] = err
	loseTasks(&want, err)
	if d := diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}

	// In a node that is a container that is no error of each sample, and no cost.
	n.Write(t, "proc/1/ns/x", "")
	probetest.Must(t, os.Symlink("pid:[4026532178]", n.Path("proc/1/ns/pid")))
	s = n.sampler(t)
	got = *s.Sample()
	err = got.Signals[PIDAvailable].Err
	probetest.CheckError(t, err, errors.ErrUnsupported)
	want = fullSnapshot()
	loseTasks(&want, err)
	if d := diff(want, got); d != "" {
		t.Errorf("a node that is a container (-want +got):\n%s", d)
	}
	if n := testing.AllocsPerRun(500, func() { s.Sample() }); n != 0 {
		t.Errorf("a node that is a container: %v allocations per sample, want 0", n)
	}
}

// inNamespace runs the test once more, in a namespace of its own that unshare(1) makes,
// and returns what that reports in out. It returns false there. Before, the process
// moves to a cgroup if there is one.
func inNamespace(t *testing.T, cgroup string, out any, flags ...string) bool {
	t.Helper()
	const mark = "NODEPROBE_NAMESPACE"
	if os.Getenv(mark) != "" {
		return false
	}
	skip := func(why any) {
		t.Helper()
		if os.Getenv("NODEPROBE_REQUIRE") == "1" {
			t.Fatalf("NODEPROBE_REQUIRE=1: %v", why)
		}
		t.Skip(why)
	}
	if os.Geteuid() != 0 {
		skip("needs root")
	}
	if _, err := exec.LookPath("unshare"); err != nil {
		skip(err)
	}
	exe, err := os.Executable()
	probetest.Must(t, err)
	const script = `if [ -n "$0" ]; then echo 0 >"$0/cgroup.procs" || exit 1; fi; exec unshare "$@"`
	args := append([]string{"-c", script, cgroup}, flags...)
	cmd := exec.CommandContext(t.Context(), "sh", append(args, exe, "-test.run=^"+t.Name()+"$")...)
	cmd.Env = append(os.Environ(), mark+"=1")
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("in a namespace: %v\n%s", err, text)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if err := json.Unmarshal([]byte(line), out); err != nil {
		t.Fatalf("in a namespace: %v\n%s", err, text)
	}
	return true
}

// report prints what inNamespace returns.
func report(t *testing.T, v any) {
	t.Helper()
	line, err := json.Marshal(v)
	probetest.Must(t, err)
	_, err = os.Stdout.Write(append(line, '\n'))
	probetest.Must(t, err)
}

// Nobody who is in a namespace of the kernel's takes its pid_max for the node's,
// whether /proc is the node's or the namespace's.
func TestRealPIDNamespace(t *testing.T) {
	for name, flags := range map[string][]string{
		"the node's proc":      {"--pid", "--fork"},
		"the namespace's proc": {"--pid", "--fork", "--mount-proc"},
	} {
		type found struct {
			OK    bool
			Max   int64
			Error string
		}
		var got found
		if !inNamespace(t, "", &got, flags...) {
			s, err := New(realConfig())
			probetest.Must(t, err)
			defer s.Close()
			snap := s.Sample()
			report(t, found{snap.Signals[PIDAvailable].OK, snap.Tasks.Max, probetest.ErrText(snap.Signals[PIDAvailable].Err)})
			return
		}
		s, err := New(realConfig())
		probetest.Must(t, err)
		defer s.Close()
		here := s.Sample()
		switch {
		case here.Signals[PIDAvailable].Err != nil:
			t.Skip(here.Signals[PIDAvailable].Err) // the test itself is in one
		case got.OK && got.Max != here.Tasks.Max:
			t.Errorf("%s: %d tasks may be in the namespace, and %d on the node", name, got.Max, here.Tasks.Max)
		case !got.OK && !strings.Contains(got.Error, ErrPIDNamespace.Error()):
			t.Errorf("%s: no limit: %s", name, got.Error)
		}
	}
}

// A container that has its own cgroup where the node's root should be uses little of
// what the node uses: the latter is what counts, and the log says once what is missing.
func TestContainersCgroupIsNotTheNodes(t *testing.T) {
	const container, root = "sys/fs/cgroup/", "sys/fs/cgroup/memory/"
	busy := machine{"proc/meminfo": "MemTotal: 33554432 kB\nMemFree: 8388608 kB\nMemAvailable: 12582912 kB\n" +
		"Buffers: 1048576 kB\nCached: 3145728 kB\nSwapCached: 0 kB\nAnonPages: 18874368 kB\nInactive(file): 2097152 kB\n" +
		"SwapTotal: 0 kB\nSwapFree: 0 kB\n"}
	for name, m := range map[string]machine{
		"v2": fullMachine.with(busy).with(machine{
			container + "memory.stat": "anon 4096\nfile 8192\ninactive_file 4096\n", container + "memory.current": "16384\n",
		}),
		"v1": fullMachine.v1().with(busy).with(machine{
			root + "memory.stat": "total_inactive_file 4096\n", root + "memory.usage_in_bytes": "16384\n",
		}),
	} {
		var log strings.Builder
		s := m.boot(t).sampler(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		s.Sample()
		snap := resample(s)
		if got, want := snap.Signals[MemoryAvailable], observe(12*gi, 32*gi); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		if n := strings.Count(log.String(), cgroup.ErrNamespace.Error()); n != 1 {
			t.Errorf("%s: said %d times:\n%s", name, n, log.String())
		}
	}
}

// As with a runtime that gives a container a cgroup namespace.
func TestRealCgroupNamespace(t *testing.T) {
	type found struct {
		OK         bool
		WorkingSet int64
		Error      string
	}
	const envDir = "NODEPROBE_SYSFS"
	if dir := os.Getenv(envDir); dir != "" {
		probetest.Must(t, unix.Mount("nodeprobe-test", filepath.Join(dir, "fs/cgroup/memory"), "cgroup", 0, "memory"))
		cfg := realConfig()
		cfg.Sysfs = dir
		s, err := New(cfg)
		probetest.Must(t, err)
		defer s.Close()
		snap := s.Sample()
		report(t, found{snap.Memory.CgroupOK, snap.Memory.WorkingSet, probetest.ErrText(cgroup.CheckRoot(cgroup.Memory(filepath.Join(dir, "fs/cgroup"))))})
		return
	}
	root, version := cgroup.Memory("/sys/fs/cgroup")
	if version != cgroup.V1 || cgroup.CheckRoot(root, version) != nil {
		t.Skipf("needs the root of a memory controller of cgroup v1, which can be mounted once more")
	}
	sysfs := t.TempDir()
	probetest.Must(t, os.MkdirAll(filepath.Join(sysfs, "fs/cgroup/memory"), 0o755))
	t.Setenv(envDir, sysfs)
	group := filepath.Join(root, "nodeprobe-test-"+filepath.Base(filepath.Dir(sysfs)))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(30 * time.Second); os.Remove(group) != nil; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("%s cannot be removed", group)
				return
			}
		}
	})
	var got found
	inNamespace(t, group, &got, "--cgroup", "--mount")
	s, err := New(realConfig())
	probetest.Must(t, err)
	defer s.Close()
	// Its own cgroup has some MiB.
	if here := s.Sample().Memory; got.OK && got.WorkingSet < here.WorkingSet/2 {
		t.Errorf("the node uses %d MiB, and in the namespace it seems to use %d", here.WorkingSet>>20, got.WorkingSet>>20)
	}
	if !strings.Contains(got.Error, cgroup.ErrNamespace.Error()) {
		t.Errorf("not noticed: %q", got.Error)
	}
}

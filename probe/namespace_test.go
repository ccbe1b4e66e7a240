package probe

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

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
			n.write(t, "proc/self/ns/x", "")
			must(t, os.Symlink(test.ns, n.path("proc/self/ns/pid")))
		}
		if err := foreignPIDMax(n.path("proc"), test.release); errors.Is(err, ErrPIDNamespace) != test.foreign {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// In a namespace, what pid_max says is nothing about the node: no limit is better than
// a wrong one.
func TestPIDNamespaceHasNoLimit(t *testing.T) {
	n := fullMachine.with(machine{"proc/self/ns/x": ""}).boot(t)
	must(t, os.Symlink("pid:[4026532178]", n.path("proc/self/ns/pid")))
	s := n.sampler(t)
	got := *s.Sample()
	if release, err := kernelRelease(); foreignPIDMax(n.path("proc"), release) == nil {
		t.Skipf("on this kernel pid_max is the machine's: %s, %v", release, err)
	}
	err := got.Errors[SourceTaskLimit]
	checkError(t, err, ErrPIDNamespace)
	want := fullSnapshot()
	want.Errors[SourceTaskLimit] = err
	loseTasks(&want, err)
	if d := diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// inNamespace runs the test once more in a namespace of its own, where
// NODEPROBE_NAMESPACE is set, and returns what that prints in out. It returns false
// there.
func inNamespace(t *testing.T, flags uintptr, out any) bool {
	t.Helper()
	const mark = "NODEPROBE_NAMESPACE"
	if os.Getenv(mark) != "" {
		return false
	}
	if os.Geteuid() != 0 {
		if os.Getenv("NODEPROBE_REQUIRE") == "1" {
			t.Fatal("NODEPROBE_REQUIRE=1: needs root")
		}
		t.Skip("needs root")
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), mark+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
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
	must(t, err)
	_, err = os.Stdout.Write(append(line, '\n'))
	must(t, err)
}

// Nobody who is in a namespace of the kernel's takes its pid_max for the node's,
// whether /proc is the node's or the namespace's.
func TestRealPIDNamespace(t *testing.T) {
	type found struct {
		OK    bool
		Max   int64
		Error string
	}
	var got found
	if !inNamespace(t, unix.CLONE_NEWPID|unix.CLONE_NEWNS, &got) {
		s, err := New(realConfig())
		must(t, err)
		defer s.Close()
		snap := s.Sample()
		report(t, found{snap.Signals[PIDAvailable].OK, snap.Tasks.Max, errText(snap.Errors[SourceTaskLimit])})
		return
	}
	s, err := New(realConfig())
	must(t, err)
	defer s.Close()
	here := s.Sample()
	switch {
	case here.Errors[SourceTaskLimit] != nil:
		t.Skip(here.Errors[SourceTaskLimit]) // the test itself is in one
	case got.OK && got.Max != here.Tasks.Max:
		t.Errorf("%d tasks may be in the namespace, and %d on the node", got.Max, here.Tasks.Max)
	case !got.OK && !strings.Contains(got.Error, ErrPIDNamespace.Error()):
		t.Errorf("no limit: %s", got.Error)
	}
}

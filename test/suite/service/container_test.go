package service

import (
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/containerd"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// In a container with the node's /proc and /, but cgroups and PIDs of its own, what
// would not be the node's is absent, and preflight says so.
func TestContainer(t *testing.T) {
	dir, binary := t.TempDir(), build.ProductForTest(t)
	socket := containerd.Start(t, containerd.Options{Dir: dir, NoNetwork: true}).Socket
	const image = "registry.example/nodeprobe:test"
	containerd.ImportProgram(t, socket, image, binary)
	inside := []string{
		"ctr", "--address", socket, "--namespace", "k8s.io", "run", "--rm", "--privileged",
		"--mount", "type=bind,src=/proc,dst=/host/proc,options=rbind:ro", "--mount", "type=bind,src=/,dst=/host/root,options=bind:ro",
		"--mount", "type=cgroup,src=cgroup,dst=/sys/fs/cgroup,options=ro", image, "test", "/program",
	}
	run := func(command []string, args ...string) []byte {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], append(args, "-o", "json")...)...)
		out, err := cmd.Output()
		if exit, is := errors.AsType[*exec.ExitError](err); err != nil && (!is || exit.ExitCode() != 3) { // something is missing
			t.Fatalf("%v: %v: %s", cmd.Args, err, exit.Stderr)
		}
		return out
	}
	type snapshot struct {
		Snapshot struct {
			Signals []struct {
				Name, Error string
				Capacity    int64
			}
			Memory struct{ WorkingSet int64 }
		}
	}
	paths := []string{"--path.procfs=/host/proc", "--path.rootfs=/host/root"}
	var node, container snapshot
	must.OK(t, json.Unmarshal(run([]string{binary}, "snapshot"), &node))
	must.OK(t, json.Unmarshal(run(inside, append([]string{"snapshot"}, paths...)...), &container))
	if got, want := container.Snapshot.Memory.WorkingSet, node.Snapshot.Memory.WorkingSet; got < want/2 {
		t.Errorf("the node uses %d bytes of memory, and in the container it seems to use %d", want, got)
	}
	pids := false
	for i, s := range container.Snapshot.Signals {
		if want := node.Snapshot.Signals[i].Capacity; s.Capacity != want && s.Capacity != 0 {
			t.Errorf("%s: capacity %d, want the node's %d", s.Name, s.Capacity, want)
		}
		pids = pids || s.Name == "pid.available" && s.Error != ""
	}
	said := string(run(inside, append([]string{"preflight"}, paths...)...))
	if !strings.Contains(said, "not the root of the node's cgroups") || strings.Contains(said, "set hostPID: true") != pids {
		t.Errorf("preflight, where pid.available is unknown: %t: %s", pids, said)
	}
}

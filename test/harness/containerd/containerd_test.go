package containerd

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
)

func TestContainerd(t *testing.T) {
	need.Root(t)
	need.Command(t, "containerd", "containerd")
	dir := t.TempDir()
	c := must.Get(Start(t.Context(), Options{Dir: dir}))(t)
	defer c.Stop()
	conn := must.Get(net.Dial("unix", c.Socket))(t)
	conn.Close()
	for range 2 {
		must.Note(t, c.Stop())
	}
	<-c.Exited()
	mounts := must.Get(os.ReadFile("/proc/self/mountinfo"))(t)
	if bytes.Contains(mounts, []byte(dir)) {
		t.Errorf("something is still mounted in %s", dir)
	}
}

// What a containerd had, the next one in the same directory has too, by the same
// socket.
func TestStartAgain(t *testing.T) {
	need.Root(t)
	need.Command(t, "containerd", "containerd")
	need.Command(t, "ctr", "containerd")
	dir := t.TempDir()
	for run := range 2 {
		c := must.Get(Start(t.Context(), Options{Dir: dir}))(t)
		defer c.Stop()
		if run == 0 {
			must.OK(t, ImportImages(t.Context(), c.Socket, 1))
		}
		out, err := exec.CommandContext(t.Context(), "ctr", "--address", c.Socket, "--namespace", "k8s.io", "images", "ls", "-q").CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("registry.example/team/name-0:0")) {
			t.Errorf("run %d: %v: %s", run, err, out)
		}
		must.Note(t, c.Stop())
	}
}

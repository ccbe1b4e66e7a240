package containerd

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/need"
)

func TestContainerd(t *testing.T) {
	need.Root(t)
	need.Command(t, "containerd", "containerd")
	dir := t.TempDir()
	c, err := Start(t.Context(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	conn, err := net.Dial("unix", c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	for range 2 {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}
	<-c.Exited()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
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
		c, err := Start(t.Context(), Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Stop()
		if run == 0 {
			if err := ImportImages(t.Context(), c.Socket, 1); err != nil {
				t.Fatal(err)
			}
		}
		out, err := exec.CommandContext(t.Context(), "ctr", "--address", c.Socket, "--namespace", "k8s.io", "images", "ls", "-q").CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("registry.example/team/name-0:0")) {
			t.Errorf("run %d: %v: %s", run, err, out)
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}
}

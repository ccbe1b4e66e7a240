package containerd

import (
	"bytes"
	"net"
	"os"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/need"
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

package cluster

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

var (
	pods      = flag.Bool("pods", false, "run pods on this machine, and put it under pressure, for minutes")
	besideFor = flag.Duration("beside", 20*time.Second, "how long a kubelet's conditions flip beside ours")
)

func TestMain(m *testing.M) {
	pressure.Main()
	flag.Parse()
	if !*pods || os.Geteuid() != 0 {
		os.Exit(build.Main(m))
	}
	code, err := confine(func() int { return build.Main(m) })
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func needPods(t *testing.T) {
	t.Helper()
	if !*pods {
		t.Skip("takes minutes and disturbs the machine; make e2e runs it")
	}
	need.Root(t)
	for command, pkg := range map[string]string{
		"containerd": "containerd", "ctr": "containerd", "runc": "runc", "buildah": "buildah",
		"mkfs.ext4": "e2fsprogs", "mount": "mount", "prometheus": "prometheus", "make": "make",
	} {
		need.Command(t, command, pkg)
	}
}

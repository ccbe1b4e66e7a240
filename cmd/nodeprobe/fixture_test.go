package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

// pathsOf returns where a tree has the node's filesystems.
func pathsOf(tr *testtree.Tree) paths { return paths{tr.Procfs(), tr.Sysfs(), tr.Rootfs()} }

// flags are those that lead a command to a tree.
func flags(tr *testtree.Tree) []string {
	return []string{"--path.procfs=" + tr.Procfs(), "--path.sysfs=" + tr.Sysfs(), "--path.rootfs=" + tr.Rootfs()}
}

const header = "apiVersion: nodeprobe.dev/v1alpha1\nkind: NodeProbeConfiguration\n"

// writeConfig writes a configuration without BPF, whose fields are given. Its thresholds
// do not depend on how full the machine's own disk is, nor its name on a resolver: it is
// its own address. It leaves the process of the tests as it is.
func writeConfig(t *testing.T, fields string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	text := header + "bpf: \"off\"\nnodeName: 192.0.2.7\n"
	for field, value := range map[string]string{"lockedMemoryLimit": `"0"`, "oomScoreAdj": "1000"} {
		if !strings.Contains(fields, field) {
			text += field + ": " + value + "\n"
		}
	}
	if !strings.Contains(fields, "evictionHard") {
		text += "evictionHard: {nodefs.available: 1Ki, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}\n"
	}
	if err := os.WriteFile(path, []byte(text+fields), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// gauge returns the value of a metric's series with that one label, or without any.
func gauge(t *testing.T, reg prometheus.Gatherer, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s %s", name, label)
	return 0
}

// started is "nodeprobe run" in this process.
type started struct {
	stdout, stderr testtree.Log
	code           chan int
}

func start(ctx context.Context, args ...string) *started {
	s := &started{code: make(chan int, 1)}
	go func() { s.code <- run(ctx, append([]string{"run"}, args...), &s.stdout, &s.stderr) }()
	return s
}

var listening = regexp.MustCompile(`msg="nodeprobe is running".* listen=(\S+) healthListen=\S+\n`)

func (s *started) address(t *testing.T) string {
	t.Helper()
	var address string
	testtree.Eventually(t, "nodeprobe is running", func() bool {
		m := listening.FindStringSubmatch(s.stderr.String())
		if m == nil {
			return false
		}
		address = m[1]
		return true
	})
	return address
}

func (s *started) wait(t *testing.T) int {
	t.Helper()
	select {
	case code := <-s.code:
		return code
	case <-time.After(patience):
		t.Fatal("run does not return")
		return 0
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

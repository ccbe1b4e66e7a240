// Package storm has this machine thrash twice, and wants nodeprobe to be better at it than
// a kubelet and node_exporter by an order of magnitude. The figures are bench/storm's.
package storm

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
)

func TestMain(m *testing.M) { os.Exit(build.Main(m)) }

func TestStorm(t *testing.T) {
	if testing.Short() {
		t.Skip("has this machine thrash; -short is set")
	}
	need.Root(t)
	need.Command(t, "containerd", "containerd")
	dir, root := t.TempDir(), filepath.Join(build.RootForTest(t), "test")
	// A program of its own: it locks itself in memory, which with the race detector would
	// be more than there is.
	program := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "storm"), "./bench/storm")
	program.Dir = root
	if out, err := program.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	var stdout, stderr bytes.Buffer
	run := exec.CommandContext(t.Context(), filepath.Join(dir, "storm"), "-storms", "2", "-nodeprobe", build.ProductForTest(t))
	run.Dir, run.Stdout, run.Stderr = root, &stdout, &stderr
	err := run.Run()
	t.Logf("\n%s%s", &stderr, &stdout)
	for _, why := range []string{"no storm here", "no storm made the machine thrash"} {
		if err != nil && strings.Contains(stderr.String(), why) {
			need.Skip(t, stderr.String()[strings.LastIndex(stderr.String(), why):])
		}
	}
	must.OK(t, err)
	ours, peers := figures(t, stdout.String())
	for _, want := range []struct {
		name string
		most float64
	}{
		{"storm_pid_node_p50", peers["storm_pid_node_p50"] / 10},
		{"storm_disk_node_p50", peers["storm_disk_node_p50"] / 10},
		{"storm_scrape_p50", peers["storm_scrape_p50"]},
		{"storm_scrape_max", peers["storm_scrape_max"]},
		{"storm_lease_gap_max", 20}, // half of what it lasts
		{"storm_major_faults", peers["storm_major_faults"]/10 + 5},
	} {
		if got, ok := ours[want.name]; !ok || got > want.most {
			t.Errorf("%s is %v (%t), want at most %v", want.name, got, ok, want.most)
		}
	}
}

// figures returns all by name, and those of their peers.
func figures(t *testing.T, text string) (ours, peers map[string]float64) {
	t.Helper()
	ours, peers = map[string]float64{}, map[string]float64{}
	for _, m := range regexp.MustCompile(`(?m)^RESULT (\w+)=([\d.]+) \S+(?: budget=\S+)?(?: peer=\w+:([\d.]+))?$`).FindAllStringSubmatch(text, -1) {
		ours[m[1]] = must.Get(strconv.ParseFloat(m[2], 64))(t)
		if m[3] != "" {
			peers[m[1]] = must.Get(strconv.ParseFloat(m[3], 64))(t)
		}
	}
	return ours, peers
}

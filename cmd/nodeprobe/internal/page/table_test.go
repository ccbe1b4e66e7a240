package page

import (
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/probe"
)

// The live table has what the page has about writes and about nodeprobe itself.
func TestLiveTable(t *testing.T) {
	var state nodeprobe.State
	var b strings.Builder
	if newPage(&state).table(&b, ""); b.String() != "" {
		t.Errorf("before the first sample: %q", &b)
	}
	state = owned(t)
	state.Ready[1].Err = errors.New("not judged")
	newPage(&state).table(&b, "http://127.0.0.1:9732/")
	for _, want := range []string{
		`^nodeprobe v1\.2\.3, mode own, node 192\.0\.2\.7, 2026-01-02 03:04:05, http://127\.0\.0\.1:9732/   \(Ctrl-C to quit\)\n\nCONDITION `,
		`\nStatus posted \S+ ago, at 03:04:04 \(changed, 321 bytes\)\nLease renewed \S+ ago, at 03:04:03, last attempt: skipped foreign\n`,
		`\nnodeprobe itself: CPU \d+\.\d\d s, recently \d+ ms a minute; memory [\d.]+Mi, 13Mi locked, 2 major faults; samples: tick 7\n`,
		`\n! conditions: not judged\n$`,
	} {
		if !regexp.MustCompile(want).MatchString(b.String()) {
			t.Errorf("no %s in\n%s", want, &b)
		}
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("broken") }

func testNode() *v1.Node {
	return &v1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "192.0.2.7"},
		Status: v1.NodeStatus{
			NodeInfo:    v1.NodeSystemInfo{OSImage: "Test\x1bLinux 1", Architecture: "amd64", KernelVersion: "6.1"},
			Capacity:    v1.ResourceList{v1.ResourcePods: resource.MustParse("110"), v1.ResourceMemory: resource.MustParse("8Gi")},
			Allocatable: v1.ResourceList{v1.ResourcePods: resource.MustParse("110"), v1.ResourceMemory: resource.MustParse("8076Mi")},
		},
	}
}

func TestSnapshotGolden(t *testing.T) {
	state := owned(t)
	s := NewSnapshot(&state, testNode())
	s.AddError("volumes", nil)
	s.AddError("node", errors.New("no address\nat all"))
	write := func(format string) string {
		var b strings.Builder
		if err := s.Write(&b, format); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if strings.HasSuffix(line, " \n") {
				t.Errorf("%s: white space at the end of %q", format, line)
			}
		}
		return b.String()
	}
	golden(t, "snapshot.table", write("table"))
	golden(t, "snapshot.yaml", write("yaml"))
	var fromJSON, fromYAML any
	if err := errors.Join(json.Unmarshal([]byte(write("json")), &fromJSON), yaml.Unmarshal([]byte(write("yaml")), &fromYAML)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fromJSON, fromYAML); diff != "" {
		t.Errorf("(-json +yaml):\n%s", diff)
	}
	if err := s.Write(brokenWriter{}, "yaml"); err == nil {
		t.Error("no error from a writer that fails")
	}
	if err := s.Write(&strings.Builder{}, "xml"); err == nil {
		t.Error("no error for an unknown format")
	}
}

// A snapshot is complete unless a source, a wanted program, a call to the runtime or
// something else failed. What the machine does not have does not count.
func TestSnapshotComplete(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*nodeprobe.State)
		add    error
		want   bool
	}{
		"all read, BPF turned off": {func(*nodeprobe.State) {}, nil, true},
		"a source":                 {func(s *nodeprobe.State) { s.Snapshot.Errors[0] = errors.New("gone") }, nil, false},
		"a program":                {func(s *nodeprobe.State) { s.Hooks[0].Err = errors.New("no BTF") }, nil, false},
		"the runtime":              {func(s *nodeprobe.State) { s.Runtime = owned(t).Runtime }, nil, false},
		"added":                    {func(*nodeprobe.State) {}, errors.New("no volumes"), false},
	} {
		state := observed(t)
		state.Snapshot.Errors[probe.SourcePressureIO] = nil
		test.change(&state)
		s := NewSnapshot(&state, testNode())
		s.AddError("x", test.add)
		if got := s.Complete(); got != test.want {
			t.Errorf("%s: complete is %v", name, got)
		}
	}
}

package page

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/internal/printable"
	"github.com/nodeprobe/nodeprobe/probe/cri"
)

// Snapshot is what "nodeprobe snapshot" prints: a sample, and the Node that mode own
// would post.
type Snapshot struct{ out snapshotView }

// snapshotView is the JSON and YAML form. The names of its fields are an interface.
type snapshotView struct {
	Snapshot view     `json:"snapshot"`
	Node     *v1.Node `json:"node"`
}

// NewSnapshot returns the Snapshot of a state and a Node. It has an error for each
// source, kernel program and call to the container runtime that failed.
func NewSnapshot(s *nodeprobe.State, node *v1.Node) *Snapshot {
	v := newView(s)
	v.Errors = append(v.Errors, hookErrors(s.Hooks)...)
	v.Errors = append(v.Errors, runtimeErrors(s.Runtime)...)
	return &Snapshot{snapshotView{v, node}}
}

// AddError adds the error of a source that the state does not know. A nil err adds
// nothing.
func (s *Snapshot) AddError(source string, err error) {
	if err != nil {
		s.out.Snapshot.Errors = append(s.out.Snapshot.Errors, errorView{Source: source, Error: err.Error()})
	}
}

// Complete reports whether there is no error.
func (s *Snapshot) Complete() bool { return len(s.out.Snapshot.Errors) == 0 }

// Write prints the Snapshot as "json", "yaml" or "table".
func (s *Snapshot) Write(w io.Writer, format string) error {
	var data []byte
	var err error
	switch format {
	case "table":
		var b strings.Builder
		s.out.Snapshot.table(&b)
		nodeSummary(&b, s.out.Node)
		data = []byte(b.String())
	case "yaml":
		data, err = yaml.Marshal(s.out)
	case "json":
		data, err = json.MarshalIndent(s.out, "", "  ")
		data = append(data, '\n')
	default:
		return fmt.Errorf("unknown format %q", format)
	}
	if err != nil {
		return fmt.Errorf("encode snapshot: %w", err)
	}
	_, err = w.Write(data)
	return err
}

// nodeSummary prints the Node's capacity as kubectl describe does.
func nodeSummary(b *strings.Builder, node *v1.Node) {
	fmt.Fprintf(b, "\nNode %s: %s, %s, kernel %s\n", node.Name, printable.Line(node.Status.NodeInfo.OSImage, -1),
		node.Status.NodeInfo.Architecture, node.Status.NodeInfo.KernelVersion)
	for _, name := range slices.Sorted(maps.Keys(node.Status.Capacity)) {
		capacity, allocatable := node.Status.Capacity[name], node.Status.Allocatable[name]
		fmt.Fprintf(b, "  %-20s capacity %-14s allocatable %s\n", name, capacity.String(), allocatable.String())
	}
	b.WriteString("For everything: nodeprobe snapshot -o yaml\n")
}

// runtimeErrors returns an entry for each call to the container runtime that failed.
func runtimeErrors(s *cri.Snapshot) []errorView {
	if s == nil {
		return nil
	}
	var views []errorView
	for c, read := range s.Reads {
		if read.Err != nil {
			views = append(views, errorView{
				Source: "runtime " + cri.Call(c).String(), Error: read.Err.Error(),
				Remedy: "check containerRuntimeEndpoint, and that the runtime is running and accepts our connection",
			})
		}
	}
	return views
}

// hookErrors returns an entry for each kernel program that is not attached although BPF
// is enabled.
func hookErrors(hooks []bpf.Hook) []errorView {
	var views []errorView
	for _, h := range hooks {
		if !h.Attached && !errors.Is(h.Err, bpf.ErrDisabled) {
			views = append(views, errorView{Source: "bpf " + h.Signal.String(), Error: fmt.Sprintf("%s: %v", h.Name, h.Err), Remedy: h.Remedy})
		}
	}
	return views
}

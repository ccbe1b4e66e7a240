package nodeprobe

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
)

func TestTier(t *testing.T) {
	off, gone := bpf.Hook{Name: "a", Err: bpf.ErrDisabled}, bpf.Hook{Name: "b", Err: errors.New("no BTF")}
	on := bpf.Hook{Name: "c", Attached: true}
	for _, test := range []struct {
		name  string
		hooks []bpf.Hook
		psi   error
		want  [2]string
	}{
		{"everything", []bpf.Hook{on, on}, nil, [2]string{"bpf", ""}},
		{"one program fewer", []bpf.Hook{on, gone}, nil, [2]string{"bpf", "b: no BTF"}},
		{"programs, no PSI", []bpf.Hook{on}, errors.New("no PSI"), [2]string{"bpf", "no PSI"}},
		{"turned off", []bpf.Hook{off, off}, nil, [2]string{"psi", "BPF is turned off by configuration"}},
		{"no programs", []bpf.Hook{gone, gone}, nil, [2]string{"psi", "b: no BTF"}},
		{"nothing", []bpf.Hook{gone}, errors.New("no PSI"), [2]string{"procfs", "b: no BTF; no PSI"}},
		{"no hooks at all", nil, errors.New("no PSI"), [2]string{"procfs", "no PSI"}},
	} {
		s := State{Hooks: test.hooks}
		s.Snapshot.Pressure[probe.MemoryResource].Err = test.psi
		name, reason := s.Tier()
		if diff := cmp.Diff(test.want, [2]string{name, reason}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

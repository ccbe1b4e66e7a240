//go:build linux && (amd64 || arm64)

package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// typesWith returns kernel types in which the tracepoint mark_victim passes arg.
func typesWith(t *testing.T, arg ...btf.Type) *btf.Spec {
	t.Helper()
	proto := &btf.FuncProto{Return: (*btf.Void)(nil), Params: []btf.FuncParam{{Type: &btf.Pointer{Target: (*btf.Void)(nil)}}}}
	for _, a := range arg {
		proto.Params = append(proto.Params, btf.FuncParam{Type: a})
	}
	return specOf(t, &btf.Typedef{Name: "btf_trace_mark_victim", Type: &btf.Pointer{Target: proto}})
}

func TestVictimIsTask(t *testing.T) {
	integer := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	task := &btf.Pointer{Target: &btf.Struct{Name: "task_struct", Size: 8}}
	for name, tt := range map[string]struct {
		types *btf.Spec
		want  bool
	}{
		"6.9: task, uid":  {typesWith(t, task, integer), true},
		"5.10: thread ID": {typesWith(t, integer), false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := victimIsTask(tt.types)
			if err != nil || got != tt.want {
				t.Errorf("victimIsTask = %v, %v; want %v", got, err, tt.want)
			}
		})
	}
	if _, err := victimIsTask(typesWith(t)); err == nil {
		t.Error("no error without parameters")
	}
	if _, err := tracepoint(typesWith(t), "task_newtask"); err == nil {
		t.Error("no error without the tracepoint")
	}
}

// On a kernel that passes a thread ID, the branch that takes a task would not be
// valid: the verifier must never come to see it.
func TestVerifierSeesOneBranch(t *testing.T) {
	open(t, OOM).Close()
	size := map[bool]int{}
	for _, isTask := range []bool{true, false} {
		spec, err := loadNodeprobe()
		if err != nil {
			t.Fatal(err)
		}
		for name := range spec.Programs {
			if name != nodeprobeProgMarkVictim {
				delete(spec.Programs, name)
			}
		}
		if err := spec.Variables[nodeprobeVarVictimIsTask].Set(isTask); err != nil {
			t.Fatal(err)
		}
		coll, err := ebpf.NewCollection(spec)
		if err != nil {
			t.Fatalf("%+v", err)
		}
		defer coll.Close()
		info, err := coll.Programs[nodeprobeProgMarkVictim].Info()
		if err != nil {
			t.Fatal(err)
		}
		if size[isTask], err = info.TranslatedSize(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d bytes with a task, %d with a thread ID", size[true], size[false])
	if size[false] >= size[true] {
		t.Error("the branch for a task is in the program for thread IDs")
	}
}

func TestHasTimers(t *testing.T) {
	types := func(helpers ...string) *btf.Spec {
		enum := &btf.Enum{Name: "bpf_func_id", Size: 4}
		for i, name := range helpers {
			enum.Values = append(enum.Values, btf.EnumValue{Name: name, Value: uint64(i)})
		}
		b, err := btf.NewBuilder([]btf.Type{enum}, nil)
		if err != nil {
			t.Fatal(err)
		}
		spec, err := b.Spec()
		if err != nil {
			t.Fatal(err)
		}
		return spec
	}
	if !hasTimers(types("BPF_FUNC_unspec", "BPF_FUNC_timer_init")) {
		t.Error("5.15 has none")
	}
	old := types("BPF_FUNC_unspec", "BPF_FUNC_sys_close")
	if hasTimers(old) || hasTimers(typesWith(t)) {
		t.Error("5.14 has timers")
	}
	l := &loader{opts: ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{KernelTypes: old}}}
	if _, missing := l.choose(Pressure); missing == nil || missing.hook().Name != "bpf_timer/tick" {
		t.Errorf("missing %+v", missing)
	}
}

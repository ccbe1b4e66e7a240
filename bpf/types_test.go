//go:build linux && (amd64 || arm64)

package bpf

import (
	"encoding/binary"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// fullTypes makes TestRelocations renew its input ("make generate-btf").
var fullTypes = flag.String("types", "", "write testdata/btf anew, from the full types in this `directory`, one like /sys/kernel/btf for each kernel")

// reduceTypes writes testdata/btf: for each kernel in a directory the types that the
// relocations touch, the tracepoints, and the helpers. bpftool leaves out the latter
// two, and what user space looks up. A kernel that the directory does not have keeps its
// file.
func reduceTypes(t *testing.T, from string) {
	t.Helper()
	kernels, err := filepath.Glob(filepath.Join(from, "*", "vmlinux"))
	if err != nil || len(kernels) == 0 {
		t.Fatalf("%s has no directories of kernels: %v", from, err)
	}
	const to = "testdata/btf"
	objects := generated(t, "nodeprobe_*_bpfel.o")
	for _, path := range kernels {
		reduced := filepath.Join(t.TempDir(), "reduced.btf")
		args := append([]string{"gen", "min_core_btf", path, reduced}, objects...)
		if out, err := exec.CommandContext(t.Context(), "bpftool", args...).CombinedOutput(); err != nil {
			t.Fatalf("bpftool %v: %v\n%s", args, err, out)
		}
		full, err := btf.LoadSpec(path)
		if err != nil {
			t.Fatal(err)
		}
		small, err := btf.LoadSpec(reduced)
		if err != nil {
			t.Fatal(err)
		}
		var types []btf.Type
		var hasHelpers bool
		for typ, err := range small.All() {
			if err != nil {
				t.Fatal(err)
			}
			hasHelpers = hasHelpers || typ.TypeName() == "bpf_func_id"
			types = append(types, typ)
		}
		var helpers *btf.Enum
		if err := full.TypeByName("bpf_func_id", &helpers); err == nil && !hasHelpers {
			types = append(types, helpers)
		}
		for _, p := range programs() {
			for _, name := range []string{p.name, p.instead} {
				if proto, err := tracepoint(full, name); name != "" && err == nil {
					types = append(types, outline(name, proto))
				}
			}
		}
		types = append(types, structures(found(append(modulesBeside(t, path, full), full)...))...)
		b, err := btf.NewBuilder(types, nil)
		if err != nil {
			t.Fatal(err)
		}
		data, err := b.Marshal(nil, &btf.MarshalOptions{Order: binary.LittleEndian})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(filepath.Dir(path))+".btf"), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// modulesBeside returns the types of a kernel's filesystems.
func modulesBeside(t *testing.T, path string, kernel *btf.Spec) []*btf.Spec {
	t.Helper()
	var modules []*btf.Spec
	for f := range filesystems() {
		file, err := os.Open(filepath.Join(filepath.Dir(path), f.String()))
		if err != nil {
			continue // built in, or the kernel has no types of modules
		}
		defer file.Close()
		module, err := btf.LoadSplitSpecFromReader(file, kernel)
		if err != nil {
			t.Fatal(err)
		}
		modules = append(modules, module)
	}
	return modules
}

// helpersIn returns the numbers of the helpers that a kernel has.
func helpersIn(types *btf.Spec) map[uint64]bool {
	numbers := make(map[uint64]bool)
	var helpers *btf.Enum
	if err := types.TypeByName("bpf_func_id", &helpers); err == nil {
		for _, helper := range helpers.Values {
			numbers[helper.Value] = true
		}
	}
	return numbers
}

// outline returns the type of a tracepoint without what its parameters point to.
func outline(name string, proto *btf.FuncProto) btf.Type {
	short := &btf.FuncProto{Return: (*btf.Void)(nil)}
	for _, p := range proto.Params {
		var typ btf.Type = &btf.Int{Name: "unsigned long", Size: 8}
		if _, isPointer := btf.As[*btf.Pointer](p.Type); isPointer {
			typ = &btf.Pointer{Target: (*btf.Void)(nil)}
		}
		short.Params = append(short.Params, btf.FuncParam{Name: p.Name, Type: typ})
	}
	return &btf.Typedef{Name: "btf_trace_" + name, Type: &btf.Pointer{Target: short}}
}

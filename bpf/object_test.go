//go:build linux && (amd64 || arm64)

package bpf

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
)

// generate runs the go:generate line of gen.go into another directory, which it
// returns. Before, it replaces one string by another in a copy of the source.
func generate(t *testing.T, before, after string) string {
	t.Helper()
	needClang(t)
	dir := t.TempDir()
	var found bool
	headers, err := filepath.Glob("*.h")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(headers, "nodeprobe.bpf.c") {
		text := readAll(t, name)
		found = found || strings.Contains(text, before)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(text, before, after)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if !found {
		t.Fatalf("%q is not in the source", before)
	}
	_, line, _ := strings.Cut(readAll(t, "gen.go"), "//go:generate ")
	line, _, _ = strings.Cut(line, "\n")
	args := strings.Fields(line)
	args[slices.Index(args, "nodeprobe.bpf.c")] = filepath.Join(dir, "nodeprobe.bpf.c")
	args = slices.Insert(args, slices.Index(args, "bpf2go")+1, "-output-dir", dir)
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "GOPACKAGE=bpf")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return dir
}

func needClang(t testing.TB) {
	t.Helper()
	for _, name := range []string{"clang", "llvm-strip"} {
		if _, err := exec.LookPath(name); err != nil {
			lacking(t, "%v (apt-get install clang llvm)", err)
		}
	}
	if _, err := os.Stat("/usr/include/bpf/bpf_helpers.h"); err != nil {
		lacking(t, "%v (apt-get install libbpf-dev)", err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "tool", "-n", "bpf2go").CombinedOutput(); err != nil {
		lacking(t, "go tool bpf2go: %v: %s", err, out)
	}
}

func generated(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) != 2 {
		t.Fatalf("%s: %v, error %v; want one for each architecture", pattern, paths, err)
	}
	return paths
}

// meaning writes down what an object makes the kernel do: all but the debug
// information, which depends on the compiler's version and on paths.
func meaning(t *testing.T, path string) []string {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpec(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{fmt.Sprint("byte order ", spec.ByteOrder)}
	for name, p := range spec.Programs {
		add := func(format string, args ...any) {
			lines = append(lines, "program "+name+" "+fmt.Sprintf(format, args...))
		}
		add("%v %v to %q section %s license %q flags %#x", p.Type, p.AttachType, p.AttachTo, p.SectionName, p.License, p.Flags)
		for i, ins := range p.Instructions {
			line := fmt.Sprintf("%3d %v", i, ins)
			if symbol := ins.Symbol(); symbol != "" {
				line += " symbol " + symbol
			}
			if reference := ins.Reference(); reference != "" {
				line += " reference " + reference
			}
			if relocation := btf.CORERelocationMetadata(&ins); relocation != nil {
				// Without the ID, which counts types in the order of the debug
				// information. What it is by name is among the types below.
				text, _, _ := strings.Cut(relocation.String(), ", local_id=")
				line += " " + text
			}
			add("%s", line)
		}
	}
	for name, m := range spec.Maps {
		lines = append(lines, fmt.Sprintf("map %s %v key %d value %d entries %d flags %#x pinning %v contents %v",
			name, m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Flags, m.Pinning, m.Contents))
	}
	for name, v := range spec.Variables {
		lines = append(lines, fmt.Sprintf("variable %s %v section %s offset %d value %v",
			name, v.Type.Type, v.SectionName, v.Offset, v.Value))
	}
	for typ, err := range spec.Types.All() {
		if err != nil {
			t.Fatal(err)
		}
		switch typ := typ.(type) {
		case *btf.Struct:
			for i, m := range typ.Members {
				lines = append(lines, fmt.Sprintf("struct %s member %d %s at %d: %v", typ.Name, i, m.Name, m.Offset, m.Type))
			}
		case *btf.Enum:
			for i, v := range typ.Values {
				lines = append(lines, fmt.Sprintf("enum %s value %d %s = %d", typ.Name, i, v.Name, v.Value))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// difference returns the lines that only one of a and b has. All lines differ:
// they are numbered where order matters.
func difference(a, b []string) string {
	var diff strings.Builder
	only := func(sign string, in, notIn []string) {
		for _, line := range in {
			if _, ok := slices.BinarySearch(notIn, line); !ok {
				fmt.Fprintln(&diff, sign, line)
			}
		}
	}
	only("-", a, b)
	only("+", b, a)
	return diff.String()
}

func TestGeneratedObjectsMatchSource(t *testing.T) {
	dir := generate(t, "", "")
	for _, path := range generated(t, "nodeprobe_*_bpfel.o") {
		if diff := difference(meaning(t, filepath.Join(dir, path)), meaning(t, path)); diff != "" {
			t.Errorf("%s is not what the source says, run go generate ./bpf (-source +committed):\n%s", path, diff)
		}
	}
	for _, path := range generated(t, "nodeprobe_*_bpfel.go") {
		if diff := cmp.Diff(readAll(t, filepath.Join(dir, path)), readAll(t, path)); diff != "" {
			t.Errorf("%s is not what the source says, run go generate ./bpf (-source +committed):\n%s", path, diff)
		}
	}
}

// A comparison that never fails would prove nothing: each change to the source
// must show, and in the right place.
func TestComparisonSeesChanges(t *testing.T) {
	for name, tt := range map[string]struct{ before, after, want string }{
		"constant":   {"EVENT_OOM_KILL = 1", "EVENT_OOM_KILL = 2", "+ program mark_victim"},
		"field":      {"pid_allocated", "level", "+ struct pid_namespace member 0 level"},
		"attachment": {`"tp_btf/block_rq_error"`, `"tp_btf/block_rq_issue"`, `+ program block_rq_error Tracing TraceRawTp to "block_rq_issue"`},
		"order":      {"add(exits, 1);", "add(forks, 1);", "+ program sched_process_free"},
		"map":        {"64 * 1024", "128 * 1024", "+ map events"},
		"data":       {"victim_is_task = true", "victim_is_task = false", "+ variable victim_is_task"},
		"license":    {"Dual BSD/GPL", "GPL", `+ program task_newtask Tracing TraceRawTp to "task_newtask" section tp_btf/task_newtask license "GPL"`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := generate(t, tt.before, tt.after)
			for _, path := range generated(t, "nodeprobe_*_bpfel.o") {
				diff := difference(meaning(t, path), meaning(t, filepath.Join(dir, path)))
				if !strings.Contains(diff, tt.want) {
					t.Errorf("%s: diff without %q:\n%s", path, tt.want, diff)
				}
			}
		})
	}
	// And a change that means nothing does not.
	dir := generate(t, "/* Signal Reclaim */", "\n\n\n")
	for _, path := range generated(t, "nodeprobe_*_bpfel.o") {
		if diff := difference(meaning(t, path), meaning(t, filepath.Join(dir, path))); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
}

// The JIT of arm64 before Linux 5.18 knows no atomic operation but a plain add.
func TestAtomicsArePlainAdds(t *testing.T) {
	for _, path := range generated(t, "nodeprobe_*_bpfel.o") {
		spec, err := ebpf.LoadCollectionSpec(path)
		if err != nil {
			t.Fatal(err)
		}
		var adds int
		for name, p := range spec.Programs {
			for i, ins := range p.Instructions {
				if ins.OpCode.Class().IsStore() && ins.OpCode.Mode() == asm.AtomicMode {
					adds++
					if op := ins.OpCode.AtomicOp(); op != asm.AddAtomic {
						t.Errorf("%s: program %s instruction %d is %v", path, name, i, op)
					}
				}
			}
		}
		if adds == 0 {
			t.Errorf("%s: found no atomic add", path)
		}
	}
}

func TestEventLayout(t *testing.T) {
	var e nodeprobeEvent
	got := []uintptr{
		unsafe.Offsetof(e.Time), unsafe.Offsetof(e.Seq), unsafe.Offsetof(e.CgroupId), unsafe.Offsetof(e.Pid),
		unsafe.Offsetof(e.Kind), unsafe.Offsetof(e.Scope), unsafe.Offsetof(e.Comm), unsafe.Sizeof(e),
	}
	if diff := cmp.Diff([]uintptr{0, 8, 16, 24, 28, 30, 32, eventSize}, got); diff != "" {
		t.Error(diff)
	}
	var g nodeprobeEdge
	got = []uintptr{
		unsafe.Offsetof(g.Time), unsafe.Offsetof(g.Seq), unsafe.Offsetof(g.Value), unsafe.Offsetof(g.Watch),
		unsafe.Offsetof(g.Kind), unsafe.Offsetof(g.Epoch), unsafe.Offsetof(g.Limit), unsafe.Sizeof(g),
	}
	if diff := cmp.Diff([]uintptr{0, 8, 16, 24, 28, 30, 32, edgeSize}, got); diff != "" {
		t.Error(diff)
	}
}

// A kernel without memory cgroups lacks types and values that the programs
// ask for. They must load there all the same.
func TestValuesMayBeMissing(t *testing.T) {
	open(t, Tasks, OOM, BlockIO, Pressure).Close()
	for value, program := range map[string]string{
		"memory_cgrp_id": nodeprobeProgMarkVictim,
		"mem_cgroup":     nodeprobeProgPressure,
	} {
		dir := generate(t, value, "nodeprobe_no_such")
		spec, err := ebpf.LoadCollectionSpec(filepath.Join(dir, generated(t, "nodeprobe_*_bpfel.o")[0]))
		if err != nil {
			t.Fatal(err)
		}
		for name := range spec.Programs {
			if name != program {
				delete(spec.Programs, name)
			}
		}
		coll, err := ebpf.NewCollection(spec)
		if err != nil {
			t.Errorf("without %s: %+v", value, err)
			continue
		}
		coll.Close()
	}
}

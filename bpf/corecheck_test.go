//go:build linux && (amd64 || arm64)

package bpf

import (
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// fullTypes makes TestRelocations renew its input ("make generate-btf").
var fullTypes = flag.String("types", "", "write testdata/btf anew, from the full BTF files in this `directory`")

// optional lists what the programs look for and a kernel may lack. Each use has
// to be guarded in the source, by bpf_core_field_exists or the like: the loader
// replaces what it guards by an instruction that the verifier must not reach.
var optional = map[string]string{
	"mem_cgroup___inside.vmstats.state[0]": "behind a pointer since 6.1",
}

// The programs fit kernels that are not the running one, as far as types go:
// every field and enumerator that they use is found in each kernel's BTF, and
// every signal has its tracepoints there. The files in testdata are the small
// part of a kernel's BTF that this takes.
func TestRelocations(t *testing.T) {
	if *fullTypes != "" {
		reduceTypes(t, *fullTypes)
	}
	paths, err := filepath.Glob("testdata/btf/*.btf")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no kernel types: %v, %v", paths, err)
	}
	for _, path := range paths {
		kernel := strings.TrimSuffix(filepath.Base(path), ".btf")
		t.Run(kernel, func(t *testing.T) {
			types, err := btf.LoadSpec(path)
			if err != nil {
				t.Fatal(err)
			}
			spec := objectFor(t, kernel)
			for _, u := range unresolved(t, spec, types) {
				name := u[strings.LastIndex(u, " ")+1:]
				if why := optional[name]; why != "" {
					t.Logf("%s (%s)", u, why)
				} else {
					t.Errorf("not in kernel %s: %s", kernel, u)
				}
			}
			l := loader{spec: spec, opts: ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{KernelTypes: types}}}
			for signal := range Signal(NumSignals) {
				progs, missing := l.choose(signal)
				if missing != nil {
					t.Errorf("signal %s: no tracepoint %s", signal, missing.name)
				}
				for _, p := range progs {
					t.Logf("%s by %s", signal, p.name)
				}
			}
			l.layout = findLayout(types)
			for f := range filesystems() {
				known := l.layout.known&(1<<f) != 0
				t.Logf("%v known: %t", f, known)
				if builtIn := f == Ext4 || kernel == "6.18-amd64"; builtIn && !known { // Debian has the others in modules
					t.Errorf("%v: not all fields found: %v", f, found(types))
				}
			}
			isTask, err := victimIsTask(types)
			if err != nil {
				t.Error(err)
			}
			t.Logf("mark_victim passes a task: %t", isTask)
		})
	}
}

// Nothing of the above is worth much if it cannot fail.
func TestRelocationsSeeWhatIsMissing(t *testing.T) {
	b, err := btf.NewBuilder([]btf.Type{
		&btf.Struct{Name: "task_struct", Size: 8, Members: []btf.Member{
			{Name: "tgid", Type: &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}},
		}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	types, err := b.Spec()
	if err != nil {
		t.Fatal(err)
	}
	got := unresolved(t, objectFor(t, "amd64"), types)
	if want := "mark_victim: byte_off task_struct.comm"; !slices.Contains(got, want) {
		t.Errorf("%q is not in %q", want, got)
	}
	if found := "mark_victim: byte_off task_struct.tgid"; slices.Contains(got, found) {
		t.Errorf("%q is in %q", found, got)
	}
}

// objectFor returns the programs for a kernel whose name ends in its architecture.
func objectFor(t *testing.T, kernel string) *ebpf.CollectionSpec {
	t.Helper()
	i := 0 // arm64 comes first
	if strings.HasSuffix(kernel, "amd64") {
		i = 1
	}
	spec, err := ebpf.LoadCollectionSpec(generated(t, "nodeprobe_*_bpfel.o")[i])
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// unresolved relocates the programs and returns what cannot be, in the form
// "program: kind type.field".
func unresolved(t *testing.T, spec *ebpf.CollectionSpec, types *btf.Spec) []string {
	t.Helper()
	var bad []string
	var total int
	for name, prog := range spec.Programs {
		var relocations []*btf.CORERelocation
		for i := range prog.Instructions {
			if r := btf.CORERelocationMetadata(&prog.Instructions[i]); r != nil {
				relocations = append(relocations, r)
			}
		}
		if len(relocations) == 0 {
			continue
		}
		total += len(relocations)
		fixups, err := btf.CORERelocate(relocations, []*btf.Spec{types}, binary.LittleEndian,
			func(btf.Type) (btf.TypeID, error) { return 1, nil })
		if err != nil {
			t.Fatalf("relocate %s: %v", name, err)
		}
		for i := range fixups {
			if strings.HasSuffix(fixups[i].String(), "poison") {
				bad = append(bad, name+": "+describe(t, spec.Types, relocations[i]))
			}
		}
	}
	if total == 0 {
		t.Error("no relocations in the programs")
	}
	slices.Sort(bad)
	return bad
}

// relocationText is how the library shows a relocation. The numbers lead through
// the members of the type, by their order in our own source.
var relocationText = regexp.MustCompile(`^CORERelocation\((\w+), (\w+):"(\w+)"\[([0-9:]+)\], `)

func describe(t *testing.T, types *btf.Spec, r *btf.CORERelocation) string {
	t.Helper()
	m := relocationText.FindStringSubmatch(r.String())
	if m == nil {
		return r.String()
	}
	kind, name := m[1], m[3]
	found, err := types.AnyTypesByName(name)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(found, func(typ btf.Type) bool { return strings.HasPrefix(fmt.Sprintf("%v", typ), m[2]+":") })
	if i < 0 {
		return r.String()
	}
	typ := found[i]
	if enum, ok := typ.(*btf.Enum); ok {
		n, err := strconv.Atoi(m[4])
		if err != nil || n >= len(enum.Values) {
			return r.String()
		}
		return kind + " " + name + "." + enum.Values[n].Name
	}
	for _, step := range strings.Split(m[4], ":")[1:] {
		n, err := strconv.Atoi(step)
		if err != nil {
			t.Fatal(err)
		}
		switch of := btf.UnderlyingType(typ).(type) {
		case *btf.Struct:
			name, typ = name+"."+of.Members[n].Name, of.Members[n].Type
		case *btf.Union:
			name, typ = name+"."+of.Members[n].Name, of.Members[n].Type
		case *btf.Array:
			name, typ = fmt.Sprintf("%s[%d]", name, n), of.Type
		}
	}
	return kind + " " + name
}

// reduceTypes writes testdata/btf: for each file in a directory the types that
// the relocations touch, and the tracepoints. bpftool leaves out the latter.
func reduceTypes(t *testing.T, from string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(from, "*.btf"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s has no file *.btf: %v", from, err)
	}
	const to = "testdata/btf"
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	objects := generated(t, "nodeprobe_*_bpfel.o")
	for _, path := range paths {
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
		for typ, err := range small.All() {
			if err != nil {
				t.Fatal(err)
			}
			types = append(types, typ)
		}
		for _, p := range programs() {
			for _, name := range []string{p.name, p.instead} {
				if proto, err := tracepoint(full, name); name != "" && err == nil {
					types = append(types, outline(name, proto))
				}
			}
		}
		types = append(types, structures(found(full))...)
		if hasTimers(full) {
			types = append(types, &btf.Enum{Name: "bpf_func_id", Size: 4, Values: []btf.EnumValue{{Name: "BPF_FUNC_timer_init"}}})
		}
		b, err := btf.NewBuilder(types, nil)
		if err != nil {
			t.Fatal(err)
		}
		data, err := b.Marshal(nil, &btf.MarshalOptions{Order: binary.LittleEndian})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(path)), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
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

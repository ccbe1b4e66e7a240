//go:build linux && (amd64 || arm64)

package bpf

import (
	"cmp"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	gocmp "github.com/google/go-cmp/cmp"
)

// update makes TestRelocations write the table that it compares otherwise.
var update = flag.Bool("update", false, "write KERNELS.md anew")

const tableFile = "KERNELS.md"

// columns are those of the table. The first are signals, the others figures.
var columns = []string{"forks", "OOM kills", "reclaim", "block errors", "PIDs", "memory", "cgroups", "ext4", "xfs", "btrfs"}

// The programs fit kernels that are not the running one, as far as types and helpers go:
// what they look for in each kernel's types is there, or costs what the table says. The
// files in testdata are the small part of a kernel's types that this takes.
func TestRelocations(t *testing.T) {
	if *fullTypes != "" {
		reduceTypes(t, *fullTypes)
	}
	paths, err := filepath.Glob("testdata/btf/*.btf")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no kernel types: %v, %v", paths, err)
	}
	slices.SortFunc(paths, func(a, b string) int { return cmp.Compare(padded(a), padded(b)) })
	rows := [][]string{append([]string{"kernel"}, columns...)}
	for _, file := range paths {
		kernel := strings.TrimSuffix(filepath.Base(file), ".btf")
		t.Run(kernel, func(t *testing.T) {
			types, err := btf.LoadSpec(file)
			if err != nil {
				t.Fatal(err)
			}
			cells := worksOn(t, objectFor(t, kernel), types)
			row := []string{kernel}
			for _, column := range columns {
				row = append(row, cells[column])
			}
			rows = append(rows, row)
			for _, column := range columns[:5] {
				if strings.HasPrefix(cells[column], "no") {
					t.Errorf("%s: %s", column, cells[column])
				}
			}
		})
	}
	want := tableText(t, rows)
	if *update || *fullTypes != "" {
		if err := os.WriteFile(tableFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := gocmp.Diff(readAll(t, tableFile), want); diff != "" {
		t.Errorf("%s is not what the programs need and the kernels have; go test -run TestRelocations ./bpf -update (-file +now):\n%s", tableFile, diff)
	}
}

// padded makes 5.10 come before 6.1.
func padded(name string) string {
	return regexp.MustCompile(`\d+`).ReplaceAllStringFunc(name, func(n string) string { return fmt.Sprintf("%4s", n) })
}

// tableText is the file with this table in place of the one in it.
func tableText(t *testing.T, rows [][]string) string {
	t.Helper()
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], len(cell))
		}
	}
	line := func(row []string) string {
		var b strings.Builder
		for i, cell := range row {
			fmt.Fprintf(&b, "| %-*s ", width[i], cell)
		}
		return b.String() + "|\n"
	}
	rule := make([]string, len(width))
	for i := range rule {
		rule[i] = strings.Repeat("-", width[i])
	}
	before, after, found := strings.Cut(readAll(t, tableFile), "\n| kernel ")
	if !found {
		t.Fatalf("%s has no table", tableFile)
	}
	_, after, _ = strings.Cut(after, "\n\n")
	var b strings.Builder
	b.WriteString(before + "\n" + line(rows[0]) + line(rule))
	for _, row := range rows[1:] {
		b.WriteString(line(row))
	}
	return b.String() + "\n" + after
}

// worksOn returns what works on a kernel, by column.
func worksOn(t *testing.T, spec *ebpf.CollectionSpec, types *btf.Spec) map[string]string {
	t.Helper()
	l := loader{spec: spec, opts: ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{KernelTypes: types}}}
	l.layout = findLayout(types)
	missing := unresolved(t, spec, types)
	lost := make(map[string]string) // and why
	for signal := range Signal(NumSignals) {
		progs, without := l.choose(signal)
		if without != nil {
			lost[signal.String()] = "no " + cmp.Or(without.instead, without.name)
			if without.timer != "" {
				lost[signal.String()] = "no timer"
			}
		}
		for _, p := range progs {
			for _, name := range missing[p.name] {
				parts := costs(name)
				if other := instead[name]; other != "" && !slices.Contains(missing[p.name], other) {
					parts = nil
				}
				t.Logf("%s lacks %s, which costs %v", p.name, name, parts)
				for _, part := range parts {
					lost[part] = cmp.Or(lost[part], "no "+name)
				}
			}
		}
	}
	cells := make(map[string]string)
	for _, column := range columns {
		part, needs := column, ""
		switch column {
		case "forks":
			part = Tasks.String()
		case "OOM kills":
			part = OOM.String()
		case "block errors":
			part = BlockIO.String()
		case "PIDs": // without the timer, too
			part, needs = "pids", Tasks.String()
			if lost[Pressure.String()] != "" {
				delete(lost, part)
			}
		case "memory", "cgroups":
			needs = Pressure.String()
		case "ext4", "xfs", "btrfs":
			part, needs = "filesystems", Pressure.String()
		}
		cells[column] = cmp.Or(lost[needs], lost[part], "yes")
	}
	for f := range filesystems() {
		if cells[f.String()] == "yes" && l.layout.known&(1<<f) == 0 {
			cells[f.String()] = "no types"
		}
	}
	if progs, _ := l.choose(BlockIO); cells["block errors"] == "yes" && progs[0].name == nodeprobeProgBlockRqComplete {
		cells["block errors"] = "by request"
	}
	if isTask, err := victimIsTask(types); err != nil {
		t.Error(err)
	} else if cells["OOM kills"] == "yes" && !isTask {
		cells["OOM kills"] = "by thread ID"
	}
	return cells
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
	got := unresolved(t, objectFor(t, "amd64"), types)["mark_victim"]
	for _, want := range []string{"task_struct.comm", asm.FnRingbufReserve.String()} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	if found := "task_struct.tgid"; slices.Contains(got, found) {
		t.Errorf("%q is in %q", found, got)
	}
	for column, cell := range worksOn(t, objectFor(t, "amd64"), typesWith(t, &btf.Int{Name: "int", Size: 4})) {
		if !strings.HasPrefix(cell, "no ") {
			t.Errorf("%s without any types: %s", column, cell)
		}
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

// unresolved relocates the programs and returns what cannot be, and which helpers the
// kernel lacks, by program: names as in costs.
func unresolved(t *testing.T, spec *ebpf.CollectionSpec, types *btf.Spec) map[string][]string {
	t.Helper()
	bad := make(map[string][]string)
	known := helpersIn(types)
	var total int
	for name, prog := range spec.Programs {
		var relocations []*btf.CORERelocation
		for i := range prog.Instructions {
			ins := &prog.Instructions[i]
			if r := btf.CORERelocationMetadata(ins); r != nil {
				relocations = append(relocations, r)
			}
			if helper := asm.BuiltinFunc(ins.Constant); ins.IsBuiltinCall() && !known[uint64(helper)] {
				bad[name] = append(bad[name], helper.String())
			}
		}
		total += len(relocations)
		fixups, err := btf.CORERelocate(relocations, []*btf.Spec{types}, binary.LittleEndian,
			func(btf.Type) (btf.TypeID, error) { return 1, nil })
		if err != nil {
			t.Fatalf("relocate %s: %v", name, err)
		}
		for i := range fixups {
			if strings.HasSuffix(fixups[i].String(), "poison") {
				_, what, _ := strings.Cut(describe(t, spec.Types, relocations[i]), " ")
				bad[name] = append(bad[name], what)
			}
		}
		slices.Sort(bad[name])
		bad[name] = slices.Compact(bad[name])
	}
	if total == 0 {
		t.Error("no relocations in the programs")
	}
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
			typ = of.Type // the first, of all
		}
	}
	return kind + " " + name
}

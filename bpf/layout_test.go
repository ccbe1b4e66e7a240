//go:build linux && (amd64 || arm64)

package bpf

import (
	"cmp"
	"iter"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
	gocmp "github.com/google/go-cmp/cmp"
)

// place is where a member is.
type place struct{ offset, size uint32 }

// found returns the places of all fields that a kernel and its modules have, by path.
func found(types ...*btf.Spec) map[string]place {
	places := make(map[string]place)
	for _, f := range fields() {
		for path := range strings.FieldsSeq(f.paths) {
			name, members, _ := strings.Cut(path, ".")
			for _, spec := range types {
				named, _ := spec.AnyTypesByName(name)
				for _, typ := range named {
					if offset, size := member(typ, members); size > 0 {
						places[path] = place{offset, size}
					}
				}
			}
		}
	}
	return places
}

// structures returns types that have nothing but members at these places.
func structures(places map[string]place) []btf.Type {
	var types []btf.Type
	for name, inside := range grouped(places) {
		types = append(types, &btf.Struct{Name: name, Size: end(inside), Members: members(inside, 0)})
	}
	return types
}

// grouped returns the places by the first step of their paths, in order.
func grouped(places map[string]place) iter.Seq2[string, map[string]place] {
	groups := make(map[string]map[string]place)
	for path, at := range places {
		first, rest, _ := strings.Cut(path, ".")
		if groups[first] == nil {
			groups[first] = make(map[string]place)
		}
		groups[first][rest] = at
	}
	return func(yield func(string, map[string]place) bool) {
		for _, name := range slices.Sorted(maps.Keys(groups)) {
			if !yield(name, groups[name]) {
				return
			}
		}
	}
}

// members returns the members of a type that begins at from, in the order of their places.
func members(places map[string]place, from uint32) (ms []btf.Member) {
	for name, inside := range grouped(places) {
		at, isField := inside[""]
		var typ btf.Type = &btf.Int{Name: "field", Size: at.size}
		if !isField {
			at = slices.MinFunc(slices.Collect(maps.Values(inside)), func(a, b place) int { return cmp.Compare(a.offset, b.offset) })
			typ = &btf.Struct{Size: end(inside) - at.offset, Members: members(inside, at.offset)}
		}
		ms = append(ms, btf.Member{Name: name, Type: typ, Offset: btf.Bits(at.offset-from) * 8})
	}
	slices.SortFunc(ms, func(a, b btf.Member) int { return cmp.Compare(a.Offset, b.Offset) })
	return ms
}

func end(places map[string]place) (end uint32) {
	for _, at := range places {
		end = max(end, at.offset+at.size)
	}
	return end
}

func specOf(t *testing.T, types ...btf.Type) *btf.Spec {
	t.Helper()
	b, err := btf.NewBuilder(types, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := b.Spec()
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// The programs and findLayout number the fields alike.
func TestFieldsAreThoseOfTheSource(t *testing.T) {
	_, enum, _ := strings.Cut(readAll(t, "watch.h"), "enum field {")
	enum, _, _ = strings.Cut(enum, "NUM_FIELDS")
	var got []string
	for _, f := range fields() {
		got = append(got, f.name)
	}
	if diff := gocmp.Diff(regexp.MustCompile(`\w+`).FindAllString(enum, -1), got); diff != "" {
		t.Errorf("(-watch.h +fields):\n%s", diff)
	}
}

// xfs as it is laid out by kernels of each time, at made-up offsets.
var xfsKernels = map[string]struct {
	only []string       // what others lack
	want map[string]int // field, and which of only it is found at; -1 is nowhere
}{
	"5.10": {[]string{"xfs_mount.m_fdblocks.count", "xfs_mount.m_flags"}, map[string]int{"XFS_FREE": 0, "XFS_FREE_PARTS": -1, "XFS_FLAGS": 1, "XFS_STATE": -1, "XFS_BTREES": -1}},
	"5.13": {[]string{"xfs_mount.m_fdblocks.count", "xfs_mount.m_flags", "xfs_mount.m_allocbt_blks.counter", "xfs_mount.m_fdblocks.counters"}, map[string]int{"XFS_FREE": 0, "XFS_FREE_PARTS": 3, "XFS_FLAGS": 1, "XFS_STATE": -1, "XFS_BTREES": 2}},
	"6.12": {[]string{"xfs_mount.m_fdblocks.count", "xfs_mount.m_opstate", "xfs_mount.m_allocbt_blks.counter", "xfs_mount.m_fdblocks.counters"}, map[string]int{"XFS_FREE": 0, "XFS_FREE_PARTS": 3, "XFS_FLAGS": -1, "XFS_STATE": 1, "XFS_BTREES": 2}},
	"6.18": {[]string{"xfs_mount.m_free.count.count", "xfs_mount.m_opstate", "xfs_mount.m_allocbt_blks.counter", "xfs_mount.m_free.count.counters"}, map[string]int{"XFS_FREE": 0, "XFS_FREE_PARTS": 3, "XFS_FLAGS": -1, "XFS_STATE": 1, "XFS_BTREES": 2}},
}

func TestLayoutsOfXFS(t *testing.T) {
	for kernel, test := range xfsKernels {
		places := make(map[string]place)
		want := make(map[string]uint32)
		for i, f := range fields() {
			if _, differs := test.want[f.name]; f.of == XFS && !differs {
				path, _, _ := strings.Cut(f.paths, " ")
				places[path] = place{uint32(8 * i), f.size}
				want[f.name] = uint32(8 * i)
			}
		}
		for i, path := range test.only {
			places[path] = place{uint32(1000 + 8*i), 8}
		}
		for name, i := range test.want {
			if want[name] = noField; i >= 0 {
				want[name] = uint32(1000 + 8*i)
			}
		}
		l := findLayout(specOf(t), specOf(t, structures(places)...)) // the kernel's, and the module's
		if l.known != 1<<XFS {
			t.Errorf("%s: knows %b", kernel, l.known)
		}
		got := make(map[string]uint32)
		for i, f := range fields() {
			if f.of == XFS {
				got[f.name] = l.offsets[i]
			}
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", kernel, diff)
		}
	}
}

// A field that is missing, or is not what it was, costs its own filesystem. What is not
// used is nowhere.
func TestLayoutsWithoutAField(t *testing.T) {
	all := make(map[string]place)
	for i, f := range fields() {
		path, _, _ := strings.Cut(f.paths, " ")
		all[path] = place{uint32(8 * i), f.size}
	}
	if l := findLayout(specOf(t, structures(all)...)); l.known != 1<<Ext4|1<<XFS|1<<Btrfs || l.offsets[len(fields())] != noField {
		t.Errorf("with all: %+v", l)
	}
	const known = uint64(1<<Ext4 | 1<<XFS | 1<<Btrfs)
	for i, f := range fields() {
		if strings.HasSuffix(f.paths, "-") {
			continue
		}
		path, _, _ := strings.Cut(f.paths, " ")
		missing, smaller := maps.Clone(all), maps.Clone(all)
		delete(missing, path)
		smaller[path] = place{all[path].offset, 2}
		for _, places := range []map[string]place{missing, smaller} {
			l := findLayout(specOf(t, structures(places)...))
			if want := known &^ (1 << f.of); l.known != want || l.offsets[i] != noField {
				t.Errorf("without %s: knows %b, want %b; offset %d", path, l.known, want, l.offsets[i])
			}
		}
	}
	if l := findLayout(); l.known != 0 {
		t.Errorf("without types: %+v", l)
	}
}

// Each filesystem that the running kernel has is known.
func TestLayoutOfThisKernel(t *testing.T) {
	cache := btf.NewCache()
	types, err := kernelTypes("", cache)
	if err != nil {
		lacking(t, "%v", err)
	}
	l := findLayout(filesystemTypes(types, cache)...)
	has := readAll(t, "/proc/filesystems")
	for f := range filesystems() {
		if strings.Contains(has, "\t"+f.String()+"\n") && l.known&(1<<f) == 0 {
			t.Errorf("%v is not known: %+v", f, found(types))
		}
	}
	for i, f := range fields() {
		if l.known&(1<<f.of) != 0 && strings.HasSuffix(f.name, "_SUPER") && l.offsets[i] == noField {
			t.Errorf("%v does not point back at its super block", f.of)
		}
	}
	t.Logf("known: %b", l.known)
}

// A module is looked at once after it was loaded, not at each watch.
func TestModulesAreLookedAtOnce(t *testing.T) {
	if _, err := os.Stat(kernelBTF); err != nil {
		lacking(t, "%v", err)
	}
	var tm timer
	tm.findModules()
	if tm.findModules() {
		t.Error("found something again")
	}
}

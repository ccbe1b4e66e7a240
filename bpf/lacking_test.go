//go:build linux && (amd64 || arm64)

package bpf

import (
	"errors"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// lostWithout is what is lost on a kernel that lacks a type, field, value or helper: a
// signal, or what the signal Pressure watches. What is not listed costs nothing.
var lostWithout = map[string]string{
	"tasks": `pid.numbers.ns pid_namespace.pid_allocated task_struct.thread_pid
		FnKtimeGetNs FnProbeReadKernel FnRingbufReserve FnRingbufSubmit`,
	"oom": `task_struct.comm task_struct.tgid
		FnGetCurrentPidTgid FnKtimeGetNs FnMapLookupElem FnProbeReadKernel FnRingbufReserve FnRingbufSubmit`,
	"reclaim": "FnGetCurrentPidTgid FnKtimeGetNs FnMapLookupElem FnMapUpdateElem",
	"blockio": "request.cmd_flags request.rq_flags", // of block_rq_complete
	"pressure": `FnGetCurrentTask FnKtimeGetNs FnMapLookupElem FnRingbufReserve FnRingbufSubmit
		FnTimerCancel FnTimerInit FnTimerSetCallback FnTimerStart`,
	"pids": "pid.numbers.ns pid_namespace.pid_allocated task_struct.thread_pid FnProbeReadKernel",
	"memory": `css_set.subsys mem_cgroup mem_cgroup.css mem_cgroup.nodeinfo mem_cgroup_per_node.lruvec.pgdat
		pglist_data.node_zonelists pglist_data.node_zones.zone_pgdat pglist_data.totalreserve_pages pglist_data.vm_stat
		task_struct.cgroups zone._watermark zone.vm_stat zone.watermark_boost zone.zone_pgdat
		zonelist._zonerefs zoneref zoneref.zone cgroup_subsys_id.memory_cgrp_id
		node_stat_item.NR_ACTIVE_FILE node_stat_item.NR_ANON_MAPPED node_stat_item.NR_FILE_PAGES
		node_stat_item.NR_INACTIVE_FILE node_stat_item.NR_KERNEL_MISC_RECLAIMABLE
		node_stat_item.NR_SLAB_RECLAIMABLE_B zone_stat_item.NR_FREE_PAGES zone_watermarks.WMARK_LOW
		FnProbeReadKernel`,
	"filesystems": `fdtable.fd fdtable.max_fds file.f_inode file_system_type.name files_struct.fdt inode.i_sb
		super_block.s_blocksize_bits super_block.s_dev super_block.s_flags super_block.s_fs_info super_block.s_magic
		super_block.s_root super_block.s_type task_struct.files FnProbeReadKernel FnProbeReadKernelStr`,
	"cgroups": `cgroup.kn cgroup.subsys cgroup_subsys_state.cgroup cgroup_subsys_state.flags fdtable.fd fdtable.max_fds
		file.f_inode files_struct.fdt inode.i_private inode.i_sb kernfs_node.id kernfs_node.priv mem_cgroup mem_cgroup.css
		mem_cgroup.memory.usage.counter mem_cgroup.vmstats mem_cgroup___inside.vmstats.state memcg_vmstats.state
		super_block.s_magic task_struct.files cgroup_subsys_id.memory_cgrp_id node_stat_item.NR_INACTIVE_FILE
		FnProbeReadKernel`,
}

// instead is what a kernel may have in place of something else.
var instead = map[string]string{
	"mem_cgroup.vmstats":                "mem_cgroup___inside.vmstats.state", // before 6.1
	"memcg_vmstats.state":               "mem_cgroup___inside.vmstats.state",
	"mem_cgroup___inside.vmstats.state": "mem_cgroup.vmstats",
}

// costs returns what is lost without something.
func costs(name string) []string {
	var lost []string
	for _, part := range slices.Sorted(maps.Keys(lostWithout)) {
		if slices.Contains(strings.Fields(lostWithout[part]), name) {
			lost = append(lost, part)
		}
	}
	return lost
}

// Whatever a kernel lacks, it costs what lostWithout says and nothing else: the rest is
// attached, what is watched is what a kernel that has everything shows, and no event
// says otherwise.
func TestEachStandsAlone(t *testing.T) {
	b := newBench(t)
	start := cpuTime(t)
	b.check(t, thisObject(t), nil) // nothing lacks
	every := 1
	if took := cpuTime(t) - start; took > 400*time.Millisecond {
		every = 12 // an emulated machine, on which all of them take minutes
		t.Logf("loading took %v: only one in %d is tried", took, every)
	}
	helpers := make(map[asm.BuiltinFunc]bool)
	names := make(map[string]string) // and their kinds
	spec := thisObject(t)
	for _, prog := range spec.Programs {
		for i := range prog.Instructions {
			ins := &prog.Instructions[i]
			if ins.IsBuiltinCall() {
				helpers[asm.BuiltinFunc(ins.Constant)] = true
			}
			if r := btf.CORERelocationMetadata(ins); r != nil {
				kind, name, _ := strings.Cut(describe(t, spec.Types, r), " ")
				names[name] = kind
			}
		}
	}
	if len(names) < 40 || len(helpers) < 10 {
		t.Fatalf("%d names, %d helpers", len(names), len(helpers))
	}
	for _, p := range programs() {
		t.Run(p.name, func(t *testing.T) {
			spec := thisObject(t)
			spec.Programs[p.name].AttachTo = noSuch // no such tracepoint
			want := []string{p.signal.String()}
			switch {
			case p.timer != "" || p.instead != "":
				want = nil // nothing to attach to; there is another
			case p.signal == Tasks:
				want = []string{"pids", "tasks"}
			}
			b.check(t, spec, want)
		})
	}
	for i, name := range slices.Sorted(maps.Keys(names)) {
		if i%every != 0 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			spec := thisObject(t)
			hide(t, spec, names[name], name)
			b.check(t, spec, costs(name))
		})
	}
	for i, helper := range slices.Sorted(maps.Keys(helpers)) {
		if i%every != 0 {
			continue
		}
		t.Run(helper.String(), func(t *testing.T) {
			spec := thisObject(t)
			hideHelper(t, spec, helper)
			b.check(t, spec, costs(helper.String()))
		})
	}
}

// cpuTime is what this process took so far, which others that keep the machine busy do
// not add to.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// thisObject returns the programs for this machine.
func thisObject(t *testing.T) *ebpf.CollectionSpec {
	t.Helper()
	spec, err := loadNodeprobe()
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// noSuch is a name that no kernel has, and noSuchHelper a number that none has.
const (
	noSuch       = "nodeprobe_no_such"
	noSuchHelper = 1 << 20
)

// hide makes the programs look for something that the kernel does not have instead.
func hide(t *testing.T, spec *ebpf.CollectionSpec, kind, name string) {
	t.Helper()
	steps := strings.Split(name, ".")
	named, err := spec.Types.AnyTypesByName(steps[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range named {
		if enum, ok := typ.(*btf.Enum); ok {
			i := slices.IndexFunc(enum.Values, func(v btf.EnumValue) bool { return v.Name == steps[1] })
			enum.Values[i].Name = noSuch
		} else if s, ok := typ.(*btf.Struct); ok && strings.HasPrefix(kind, "type_") {
			s.Name = noSuch
		} else {
			*memberName(t, typ, steps[1:]) = noSuch
		}
	}
}

func memberName(t *testing.T, typ btf.Type, steps []string) *string {
	t.Helper()
	if array, ok := btf.As[*btf.Array](typ); ok {
		typ = array.Type
	}
	s, ok := btf.As[*btf.Struct](typ)
	if !ok {
		t.Fatalf("%v has no members", typ)
	}
	i := slices.IndexFunc(s.Members, func(m btf.Member) bool { return m.Name == steps[0] })
	if len(steps) > 1 {
		return memberName(t, s.Members[i].Type, steps[1:])
	}
	return &s.Members[i].Name
}

// hideHelper makes the programs call a helper that no kernel has, in its place, and
// not find its name either.
func hideHelper(t *testing.T, spec *ebpf.CollectionSpec, helper asm.BuiltinFunc) {
	t.Helper()
	for _, prog := range spec.Programs {
		for i := range prog.Instructions {
			if ins := &prog.Instructions[i]; ins.IsBuiltinCall() && asm.BuiltinFunc(ins.Constant) == helper {
				ins.Constant = noSuchHelper
			}
		}
	}
	var ids *btf.Enum
	if err := spec.Types.TypeByName("bpf_func_id", &ids); err != nil {
		t.Fatal(err)
	}
	for i := range ids.Values {
		if ids.Values[i].Value == uint64(helper) {
			ids.Values[i].Name = noSuch
		}
	}
}

// lackingBench has a Sensor that has everything, to compare with.
type lackingBench struct {
	whole   *Sensor
	types   *btf.Spec
	cache   *btf.Cache
	watches []Watch
	parts   []string // of each watch
}

func newBench(t *testing.T) *lackingBench {
	t.Helper()
	b := &lackingBench{whole: open(t, Tasks, OOM, Reclaim, BlockIO, Pressure), cache: btf.NewCache()}
	var err error
	if b.types, err = kernelTypes("", b.cache); err != nil {
		t.Fatal(err)
	}
	d := newDisk(t)
	dir, err := unix.Open(memoryCgroup(t, 64<<20), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(dir) })
	fd := d.open(unix.O_PATH)
	b.watches = []Watch{
		{Figure: MemAvailable},
		{Figure: WorkingSet, Total: 1 << 50},
		{Figure: PIDs, Total: 1 << 22},
		{Figure: FreeBytes, FD: fd},
		{Figure: FreeInodes, FD: fd},
		{Figure: CgroupMemory, Total: 64 << 20, FD: dir},
	}
	b.parts = []string{"memory", "memory", "pids", "filesystems", "filesystems", "cgroups"}
	for i := range b.watches {
		b.watches[i].Below, b.watches[i].Above = never, never
	}
	watch(t, b.whole, b.watches...)
	return b
}

// check loads the programs and compares what is lost with what is to be.
func (b *lackingBench) check(t *testing.T, spec *ebpf.CollectionSpec, want []string) {
	t.Helper()
	l := &loader{
		spec: spec, maps: make(map[string]*ebpf.Map), layout: b.whole.kernel.timer.layout,
		opts: ebpf.CollectionOptions{Cache: b.cache, Programs: ebpf.ProgramOptions{KernelTypes: b.types}},
	}
	s := newSensor()
	defer closeSensor(t, s)
	lost := make(map[string]bool)
	for signal := range Signal(NumSignals) {
		s.attach(l, signal, readEnvironment())
		if !s.has.Has(signal) {
			lost[signal.String()] = true
		}
	}
	// This kernel may need but one of these.
	if coll, err := l.load([]program{{name: nodeprobeProgBlockRqComplete}}); err != nil {
		lost[BlockIO.String()] = true
	} else {
		coll.Close()
	}
	for _, h := range s.Hooks() {
		if !h.Attached && (h.Err == nil || h.Remedy == "") {
			t.Errorf("%s is not attached, and nobody knows why: %+v", h.Name, h)
		}
	}
	var refused WatchErrors
	if err := s.Watch(b.watches); err != nil && !errors.As(err, &refused) {
		t.Fatal(err)
	}
	for _, r := range refused {
		if s.has.Has(Pressure) && (s.has.Has(Tasks) || r.Figure != PIDs) {
			lost[b.parts[r.Watch]] = true
		}
		if !errors.Is(r, errors.ErrUnsupported) && s.has.Has(Tasks) && s.has.Has(Pressure) {
			t.Errorf("%v", r)
		}
	}
	if !s.has.Has(Tasks) && slices.Contains(want, "pids") {
		lost["pids"] = true // not to be told apart
	}
	is := slices.Sorted(maps.Keys(lost))
	// Before 6.8 a verifier also looks into functions that nothing calls, so that what all
	// parts need takes the timer with it.
	if lost["pressure"] && !slices.ContainsFunc(b.parts, func(part string) bool { return !slices.Contains(want, part) }) {
		want = slices.Sorted(slices.Values(append(slices.Clone(want), "pressure")))
	}
	if slices.Contains(want, "pressure") {
		want = slices.DeleteFunc(slices.Clone(want), func(part string) bool { return slices.Contains(b.parts, part) })
		is = slices.DeleteFunc(is, func(part string) bool { return slices.Contains(b.parts, part) })
	}
	if diff := gocmp.Diff(want, is); diff != "" {
		t.Errorf("lost (-want +got):\n%s%v", diff, refused)
	}
	b.compare(t, s, refused)
}

// compare checks that what a Sensor watches is what the whole one does.
func (b *lackingBench) compare(t *testing.T, s *Sensor, refused WatchErrors) {
	t.Helper()
	if s.Refresh() != nil || b.whole.Refresh() != nil {
		return // no timer
	}
	got, want := levels(s), levels(b.whole)
	for i := range b.watches {
		if slices.ContainsFunc(refused, func(r WatchError) bool { return r.Watch == i }) {
			continue
		}
		slack := int64(256 << 20)
		switch b.watches[i].Figure {
		case PIDs:
			slack = 100
		case FreeInodes:
			slack = 64
		case FreeBytes, CgroupMemory:
			slack = 4 << 20
		}
		if a, b := got.Watches[i].Value, want.Watches[i].Value; a < b-slack || a > b+slack {
			t.Errorf("watch %d: %d, and of a whole sensor %d", i, a, b)
		}
		if l := got.Watches[i]; l.Pressure != 0 || l.ReadOnly != 0 || l.Stale != 0 {
			t.Errorf("watch %d: %+v", i, l)
		}
	}
	if s.kernel.hasEvents() {
		if e := event(t, s, 0); e != nil {
			t.Errorf("%+v", e)
		}
	}
}

// Types of another kernel describe none of this one's structures. What is read by them is
// refused, or happens to be right; of a filesystem that is certain, as its structure must
// point back.
func TestTypesOfAnotherKernel(t *testing.T) {
	b := newBench(t)
	files, err := filepath.Glob("testdata/btf/*-" + runtime.GOARCH + ".btf")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		s := Open(Options{BTF: file})
		var refused WatchErrors
		if err := s.Watch(b.watches); err != nil && !errors.As(err, &refused) {
			t.Errorf("%s: %v", file, err)
		}
		t.Logf("%s: signals %05b, %d of %d watches refused", file, s.has, len(refused), len(b.watches))
		if s.Refresh() == nil && b.whole.Refresh() == nil {
			for i, l := range levels(s).Watches {
				want := levels(b.whole).Watches[i].Value
				if l.Filesystem != 0 && (l.Value < want-4<<20 || l.Value > want+4<<20 || l.ReadOnly != 0) {
					t.Errorf("%s: watch %d: %+v, want %d", file, i, l, want)
				}
			}
		}
		closeSensor(t, s)
	}
}

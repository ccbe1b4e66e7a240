//go:build linux && (amd64 || arm64)

package bpf

import (
	"errors"
	"fmt"
	"maps"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// kernelBTF has the kernel's own types (Linux 5.4).
const kernelBTF = "/sys/kernel/btf/vmlinux"

// reclaimsPerCPU is how many threads per CPU can be tracked through reclaim. The LRU hash
// gives its entries to the CPUs 128 at a time, and a CPU that finds none left evicts one
// in use elsewhere.
const reclaimsPerCPU = 256

// kernelTypes reads the kernel's types from path, or from kernelBTF if that is "".
func kernelTypes(path string, cache *btf.Cache) (*btf.Spec, error) {
	if path != "" {
		types, err := btf.LoadSpec(path)
		if err != nil {
			return nil, fmt.Errorf("read kernel types from %s: %w", path, err)
		}
		return types, nil
	}
	// Without this file the cache would search the disk for a vmlinux, in vain: a
	// kernel without BTF attaches none of the programs.
	if _, err := os.Stat(kernelBTF); err != nil {
		return nil, fmt.Errorf("read kernel types: %w", err)
	}
	types, err := cache.Kernel()
	if err != nil {
		return nil, fmt.Errorf("read kernel types from %s: %w", kernelBTF, err)
	}
	return types, nil
}

// loader loads the programs signal by signal. Loading all at once, and again without
// those that fail, would be no faster: the costly part, the kernel's types, is decoded
// only once (CollectionOptions.Cache).
type loader struct {
	spec *ebpf.CollectionSpec
	opts ebpf.CollectionOptions
	// maps are the maps loaded so far, which the signals share.
	maps map[string]*ebpf.Map
	// layout is where the kernel has the fields of filesystems.
	layout layout
	// leftOut are the parts that the next programs are loaded without, refused why.
	leftOut uint32
	refused map[uint32]error
}

// The parts of the programs that can be left out: enum part in watch.h.
const (
	partMemory = 1 << iota
	partPIDs
	partFilesystems
	partCgroups
)

// partOf returns the part that a figure needs.
func partOf(f Figure) uint32 {
	switch {
	case f.OfFilesystem():
		return partFilesystems
	case f == PIDs:
		return partPIDs
	case f == CgroupMemory:
		return partCgroups
	}
	return partMemory
}

// loadMost is load without those parts that the verifier refuses: some type, field or
// helper is not what it is in the kernels that are known. It tries them one by one.
func (l *loader) loadMost(progs []program) (*ebpf.Collection, error) {
	coll, err := l.load(progs)
	var verifier *ebpf.VerifierError
	if progs[0].timer == "" || !errors.As(err, &verifier) {
		return coll, err
	}
	l.refused = make(map[uint32]error)
	l.leftOut = partMemory | partPIDs | partFilesystems | partCgroups
	for _, part := range []uint32{partMemory, partPIDs, partFilesystems, partCgroups} {
		l.leftOut &^= part
		trial, refusal := l.load(progs)
		if refusal != nil {
			l.leftOut |= part
			l.refused[part] = refusal
			continue
		}
		trial.Close()
	}
	if coll, again := l.load(progs); again == nil {
		return coll, nil
	}
	return nil, err // it is not one of the parts
}

// choose returns the programs of a signal for this kernel, and one whose tracepoint or
// timer is missing, if any.
func (l *loader) choose(signal Signal) (chosen []program, missing *program) {
	for _, p := range programs() {
		if p.signal != signal {
			continue
		}
		if p.timer != "" {
			if !hasTimers(l.opts.Programs.KernelTypes) {
				missing = &p
			}
		} else if !l.traces(p.name) {
			if p.instead != "" && l.traces(p.instead) {
				p.name = p.instead
			} else {
				missing = &p
			}
		}
		chosen = append(chosen, p)
	}
	return chosen, missing
}

// traces reports whether the kernel has the tracepoint of a program.
func (l *loader) traces(name string) bool {
	_, err := tracepoint(l.opts.Programs.KernelTypes, l.spec.Programs[name].AttachTo)
	return err == nil
}

// tracepoint returns the type of the functions that can be attached to a tracepoint.
// Their first parameter is not one of the tracepoint.
func tracepoint(types *btf.Spec, name string) (*btf.FuncProto, error) {
	var typedef *btf.Typedef
	if err := types.TypeByName("btf_trace_"+name, &typedef); err != nil {
		return nil, err
	}
	if ptr, ok := btf.As[*btf.Pointer](typedef); ok {
		if proto, ok := btf.As[*btf.FuncProto](ptr.Target); ok {
			return proto, nil
		}
	}
	return nil, fmt.Errorf("%v is no pointer to a function", typedef)
}

// victimIsTask reports whether the tracepoint mark_victim passes a pointer to the
// victim's task, not its thread ID.
func victimIsTask(types *btf.Spec) (bool, error) {
	proto, err := tracepoint(types, "mark_victim")
	if err != nil {
		return false, err
	}
	if len(proto.Params) < 2 {
		return false, errors.New("tracepoint mark_victim has no parameters")
	}
	_, isPointer := btf.As[*btf.Pointer](proto.Params[1].Type)
	return isPointer, nil
}

// load loads progs and the maps that they use. The caller must close the
// Collection.
func (l *loader) load(progs []program) (*ebpf.Collection, error) {
	part := &ebpf.CollectionSpec{
		Maps:      make(map[string]*ebpf.MapSpec),
		Programs:  make(map[string]*ebpf.ProgramSpec),
		Variables: make(map[string]*ebpf.VariableSpec),
		Types:     l.spec.Types,
		ByteOrder: l.spec.ByteOrder,
	}
	for _, p := range progs {
		prog := l.spec.Programs[p.name]
		part.Programs[p.name] = prog
		for name := range prog.Instructions.ReferenceOffsets() {
			if m := l.spec.Maps[name]; m != nil {
				part.Maps[name] = m
			}
		}
	}
	for name, v := range l.spec.Variables {
		if part.Maps[v.SectionName] != nil {
			part.Variables[name] = v
		}
	}
	if err := l.adapt(part); err != nil {
		return nil, err
	}

	opts := l.opts
	opts.MapReplacements = make(map[string]*ebpf.Map)
	for name := range part.Maps {
		// Constants differ.
		if m := l.maps[name]; m != nil && name != ".rodata" {
			opts.MapReplacements[name] = m
		}
	}
	return ebpf.NewCollectionWithOptions(part, opts)
}

// adapt sets what depends on the machine.
func (l *loader) adapt(part *ebpf.CollectionSpec) error {
	if m := part.Maps[nodeprobeMapReclaims]; m != nil {
		cpus, err := ebpf.PossibleCPU()
		if err != nil {
			return fmt.Errorf("count CPUs: %w", err)
		}
		m.MaxEntries = max(m.MaxEntries, uint32(cpus)*reclaimsPerCPU)
	}
	if v := part.Variables[nodeprobeVarLeftOut]; v != nil {
		if err := v.Set(l.leftOut); err != nil {
			return fmt.Errorf("set left_out: %w", err)
		}
	}
	if v := part.Variables[nodeprobeVarVictimIsTask]; v != nil {
		isTask, err := victimIsTask(l.opts.Programs.KernelTypes)
		if err != nil {
			return fmt.Errorf("look at tracepoint mark_victim: %w", err)
		}
		if err := v.Set(isTask); err != nil {
			return fmt.Errorf("set victim_is_task: %w", err)
		}
	}
	return nil
}

// keep makes the maps of coll available to the signals that are loaded later.
func (l *loader) keep(coll *ebpf.Collection) {
	maps.Copy(l.maps, coll.Maps)
}

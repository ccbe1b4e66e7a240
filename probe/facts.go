package probe

import (
	"cmp"
	"errors"
	"path/filepath"
	"runtime"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// fact is something about the node that rarely changes. Its file may be on a disk that
// hangs, as paths may lead anywhere: so each fact has a worker, and one that hangs costs
// that fact alone.
type fact struct {
	source Source
	worker deadline.Worker[discovery]
	read   func() discovery
	asked  bool // a read is under way, or due
	known  bool // there was an answer

	changed bool // by a late answer
	late    lateness
	err     error
}

// discovery is the result of reading a fact.
type discovery struct {
	store func(*Snapshot) // nil where there is nothing to store
	err   error
}

// factReader reads the facts. A fact that the machine does not have is "". One that
// exists and cannot be read keeps its value, as the machine is still the same, and adds
// an error.
type factReader struct {
	wait  waits
	facts []*fact

	firmware *string // the firmware's UUID; nil while it is not known
}

func newFactReader(procfs, sysfs, rootfs string, wait waits) *factReader {
	r := &factReader{wait: wait}
	text := func(read func(at func(string)) (string, error), field func(*Snapshot) *string) {
		r.add(SourceMachine, func(at func(string)) discovery {
			value, err := read(at)
			if err != nil {
				return discovery{err: err}
			}
			return discovery{store: func(s *Snapshot) { *field(s) = value }}
		})
	}
	text(func(at func(string)) (string, error) { return readMachineID(rootfs, at) },
		func(s *Snapshot) *string { return &s.Machine.MachineID })
	text(func(at func(string)) (string, error) { return readBootID(procfs, at) },
		func(s *Snapshot) *string { return &s.Machine.BootID })
	r.add(SourceMachine, func(at func(string)) discovery {
		image, err := osImage(rootfs, at)
		return discovery{func(s *Snapshot) {
			if err != nil {
				image = cmp.Or(s.Machine.OSImage, "Unknown") // the kubelet's word
			}
			s.Machine.OSImage = image
		}, err}
	})
	r.add(SourceMachine, func(at func(string)) discovery {
		id := firmwareUUID(procfs, sysfs, at)
		return discovery{store: func(*Snapshot) { r.firmware = &id }}
	})
	r.add(SourceMachine, func(at func(string)) discovery {
		no := noCPUQuota(filepath.Join(sysfs, "fs/cgroup"), at)
		return discovery{store: func(s *Snapshot) { s.Machine.NoCPUQuota = no }}
	})
	r.add(SourceCPUs, func(at func(string)) discovery {
		cpus, err := readCPUs(sysfs, at)
		if err != nil {
			return discovery{err: err}
		}
		return discovery{store: func(s *Snapshot) { s.Capacity.CPUs = cpus }}
	})
	r.add(SourceHugePages, func(at func(string)) discovery {
		pools, err := readHugePages(sysfs, at)
		if pools == nil {
			return discovery{err: err}
		}
		return discovery{func(s *Snapshot) { s.Capacity.setHugePages(pools) }, err}
	})
	return r
}

// add adds a fact. Its read calls at before each file, so that an error about a read
// that hangs names the file.
func (r *factReader) add(source Source, read func(at func(path string)) discovery) {
	f := &fact{source: source}
	f.read = func() discovery { return read(func(path string) { f.worker.At("read " + path) }) }
	r.facts = append(r.facts, f)
}

// start begins to read the facts without an answer yet, and all of them if due.
func (r *factReader) start(s *Snapshot, now time.Time, due bool) {
	for _, f := range r.facts {
		if found, ok, err := takeLate(&f.late, &f.worker); ok {
			f.take(s, found, err)
			f.changed = true
		}
		if f.asked = f.asked || due; f.asked {
			f.worker.Start(now, "read "+f.source.String(), f.read)
		}
	}
}

// take stores an answer, or the error that there was none in time.
func (f *fact) take(s *Snapshot, found discovery, err error) {
	if err != nil {
		f.err = late(f.err, err)
		return
	}
	f.asked, f.known, f.err = false, true, found.err
	if found.store != nil {
		found.store(s)
	}
}

// finish stores the answers of the reads that start began.
func (r *factReader) finish(s *Snapshot) {
	any := false
	for _, f := range r.facts {
		any = any || f.changed
		f.changed = false
		if !f.asked {
			continue
		}
		any = true
		if found, ok, err := await(&f.late, &f.worker, s.Time, r.wait, f.known); ok {
			f.take(s, found, err)
		}
	}
	if !any {
		return
	}
	m := &s.Machine
	m.OperatingSystem, m.Architecture = runtime.GOOS, runtime.GOARCH
	release, releaseErr := kernelRelease()
	m.KernelVersion = cmp.Or(release, m.KernelVersion)
	if r.firmware != nil { // a board without one goes by its machine ID, as the kubelet does
		m.SystemUUID = cmp.Or(*r.firmware, m.MachineID)
	}
	s.Errors[SourceMachine], s.Errors[SourceCPUs], s.Errors[SourceHugePages] = releaseErr, nil, nil
	for _, f := range r.facts {
		if f.err != nil {
			s.Errors[f.source] = errors.Join(s.Errors[f.source], f.err)
		}
	}
}

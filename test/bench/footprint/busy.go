package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

// The busy load works at a fixed rate, so that two runs can be compared: in each round
// one small program is compiled and linked while processes are started one after another,
// and three readers read a file twice that their cgroup has no room for: like a container
// at its limit they wait for memory, and read from the disk each time.
const (
	roundInterval = 5 * time.Second
	roundForks    = 500
	fileSize      = 96 << 20
	fileRoom      = 24 << 20
)

// round has the module's directory, its number, how many processes to start, and the
// cgroup to read in, if there is one; file descriptor 3 is the file.
const round = `
cd "$0" && printf 'package main\n\nimport "net/http"\n\nfunc main() { println(%d, http.ListenAndServe("", nil)) }\n' "$1" >main.go || exit
(if [ "$3" ]; then echo 0 >"$3/cgroup.procs"; fi; f=/proc/self/fd/3; cat $f $f & cat $f $f & cat $f $f; wait) >/dev/null & readers=$!
(i=0; while [ $i -lt "$2" ]; do cat </dev/null; i=$((i + 1)); done) & forks=$!
go build -trimpath -ldflags '-s -w' -o busy . && wait $readers && wait $forks`

// work is the busy load.
type work struct {
	dir, cgroup string
	file        *os.File
	done        atomic.Int64 // rounds
	stop, ended chan struct{}
}

// startWork does one round, so that nothing has to be built for the first time later on,
// and begins. The work ends with the scope, after the round that it is in.
func startWork(p *program.P) *work {
	w := &work{dir: p.TempDir(), file: unnamedFile(p), stop: make(chan struct{}), ended: make(chan struct{})}
	p.Cleanup(func() { w.file.Close() })
	if group, err := pressure.MemoryCgroup(fileRoom); err == nil {
		p.Cleanup(func() { must.Note(p, group.Release()) })
		w.cgroup = group.Cgroup
	} else {
		p.Logf("what is read stays in the page cache: %v", err)
	}
	must.OK(p, os.WriteFile(filepath.Join(w.dir, "go.mod"), []byte("module busy\n\ngo 1.26\n"), 0o600))
	must.OK(p, w.round())
	go func() {
		defer close(w.ended)
		tick := time.NewTicker(roundInterval)
		defer tick.Stop()
		for {
			select {
			case <-w.stop:
				return
			case <-tick.C:
			}
			if err := w.round(); err != nil { // as in a moment without memory
				p.Logf("%v", err)
			}
		}
	}()
	p.Cleanup(func() {
		close(w.stop)
		<-w.ended
	})
	return w
}

// unnamedFile returns a file that is gone when its last user is.
func unnamedFile(p *program.P) *os.File {
	f := must.Get(os.CreateTemp("/var/tmp", "nodeprobe-footprint-"))(p)
	must.OK(p, os.Remove(f.Name()))
	for range fileSize >> 20 {
		must.Get(f.Write(bytes.Repeat([]byte("nodeprobe"), 1<<20/9)))(p)
	}
	// Only clean pages can be dropped, and pages that are in the cache already would
	// never be charged to the reader.
	must.OK(p, f.Sync())
	must.OK(p, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
	return f
}

func (w *work) round() error {
	sh, err := process.Start(process.Spec{
		Path: "/bin/sh", Args: []string{"-c", round, w.dir, fmt.Sprint(w.done.Load()), strconv.Itoa(roundForks), w.cgroup},
		Env: []string{"CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-buildvcs=false"}, LogFile: filepath.Join(w.dir, "log"), Files: []*os.File{w.file},
	})
	if err != nil {
		return err
	}
	<-sh.Exited()
	if !sh.Succeeded() {
		return fmt.Errorf("a round of work failed:\n%s", process.LogTail(filepath.Join(w.dir, "log"), 20))
	}
	w.done.Add(1)
	return nil
}

// machine is what the whole machine has done, from its start on.
type machine struct {
	busy, idle float64 // CPU seconds; waiting for a disk is idle
	forks      uint64
	stalled    float64 // seconds in which some task waited for memory; 0 without PSI
	rounds     int64   // of the work, if there is any
	at         time.Time
}

func readMachine(p *program.P, w *work) machine {
	fs := must.Get(procfs.NewDefaultFS())(p)
	stat := must.Get(fs.Stat())(p)
	cpu := stat.CPUTotal
	m := machine{
		busy: cpu.User + cpu.Nice + cpu.System + cpu.IRQ + cpu.SoftIRQ + cpu.Steal,
		idle: cpu.Idle + cpu.Iowait, forks: stat.ProcessCreated, at: time.Now(),
	}
	if w != nil {
		m.rounds = w.done.Load()
	}
	if psi, err := fs.PSIStatsForResource("memory"); err == nil && psi.Some != nil {
		m.stalled = float64(psi.Some.Total) / 1e6
	}
	return m
}

// since describes what was done from an earlier look on.
func (m machine) since(before machine) string {
	busy, took := m.busy-before.busy, m.at.Sub(before.at).Seconds()
	return fmt.Sprintf("CPUs %.0f %% busy, %.1f new tasks/s, %.1f %% of the time stalled by memory, %.1f rounds of work/min",
		100*busy/(busy+m.idle-before.idle), float64(m.forks-before.forks)/took, 100*(m.stalled-before.stalled)/took,
		60*float64(m.rounds-before.rounds)/took)
}

//go:build linux && (amd64 || arm64)

package bpf

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
)

// objects are the IDs of what a Sensor has in the kernel.
type objects struct {
	Programs []ebpf.ProgramID
	Maps     []ebpf.MapID
	mapped   map[ebpf.MapID]bool
}

func (s *Sensor) objects() (objects, error) {
	o := objects{mapped: make(map[ebpf.MapID]bool)}
	for _, coll := range s.kernel.collections {
		for name, p := range coll.Programs {
			info, err := p.Info()
			if err != nil {
				return o, fmt.Errorf("program %s: %w", name, err)
			}
			id, _ := info.ID()
			o.Programs = append(o.Programs, id)
		}
		for name, m := range coll.Maps {
			info, err := m.Info()
			if err != nil {
				return o, fmt.Errorf("map %s: %w", name, err)
			}
			id, _ := info.ID()
			o.Maps = append(o.Maps, id)
			o.mapped[id] = strings.HasPrefix(name, ".") // the ELF section of variables
		}
	}
	return o, nil
}

// wantGone waits until nothing of o is in the kernel. A timer that still ran would
// hold on to its program, and that to its maps.
func (o objects) wantGone(t *testing.T) {
	t.Helper()
	if len(o.Programs) < len(programs()) || len(o.Maps) < 3 {
		t.Errorf("only %+v", o)
	}
	for _, id := range o.Programs {
		eventually(t, fmt.Sprintf("program %d gone", id), func() bool {
			p, err := ebpf.NewProgramFromID(id)
			if err == nil {
				p.Close()
			}
			return errors.Is(err, os.ErrNotExist)
		})
	}
	for _, id := range o.Maps {
		eventually(t, fmt.Sprintf("map %d gone", id), func() bool {
			m, err := ebpf.NewMapFromID(id)
			if err == nil {
				m.Close()
			}
			return errors.Is(err, os.ErrNotExist)
		})
	}
}

// busy has the timer of a Sensor tick as often as it can.
func busy(s *Sensor) error {
	return s.Watch([]Watch{
		{Figure: MemAvailable, Below: 0, Above: 0, MaxRate: maxRate},
		{Figure: PIDs, Total: 1 << 22, Below: 0, Above: 0},
	})
}

// helperWatch watches until it is killed, and prints what it has in the kernel.
func helperWatch([]string) error {
	s := Open(Options{})
	if err := busy(s); err != nil {
		return err
	}
	o, err := s.objects()
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(o); err != nil {
		return err
	}
	for {
		if err := s.ReadEvent(new(Event)); err != nil {
			return err
		}
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	s := open(t, Tasks, OOM, Reclaim, BlockIO, Pressure)
	if err := busy(s); err != nil {
		t.Fatal(err)
	}
	o, err := s.objects()
	if err != nil {
		t.Fatal(err)
	}
	// What is mapped into our memory stays: Counters and Levels go on reading it.
	o.Maps = slices.DeleteFunc(o.Maps, func(id ebpf.MapID) bool { return o.mapped[id] })
	closeSensor(t, s)
	o.wantGone(t)
	ticks := levels(s).Ticks
	for range 5 {
		thread()
	}
	if got := levels(s).Ticks; got != ticks {
		t.Errorf("%d ticks after Close", got-ticks)
	}
}

func TestKillLeavesNothing(t *testing.T) {
	open(t, Tasks, OOM, Reclaim, BlockIO, Pressure).Close()
	cmd := helper(t, "watch")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var o objects
	if err := json.Unmarshal(line, &o); err != nil {
		t.Fatalf("%v in %q", err, line)
	}
	if p, err := ebpf.NewProgramFromID(o.Programs[0]); err != nil {
		t.Errorf("program %d before the kill: %v", o.Programs[0], err)
	} else {
		p.Close()
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	o.wantGone(t)
}

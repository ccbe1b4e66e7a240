//go:build !linux || !(amd64 || arm64)

package bpf

import (
	"errors"
	"fmt"
	"runtime"
)

// kernel is what Open loaded: nothing, on this platform.
type kernel struct{}

func (s *Sensor) load(Options) {
	err := fmt.Errorf("no BPF programs for %s/%s: %w", runtime.GOOS, runtime.GOARCH, errors.ErrUnsupported)
	s.refuseAll(err, "use linux/amd64 or linux/arm64, or run without BPF (bpf: off)")
}

func (*kernel) counters() Counters     { return Counters{} }
func (*kernel) readEvent(*Event) error { return errors.ErrUnsupported }
func (*kernel) hasEvents() bool        { return false }
func (*kernel) flush() error           { return errors.ErrUnsupported }
func (*kernel) readLevels(l *Levels)   { *l = Levels{} }
func (*kernel) refresh() error         { return errors.ErrUnsupported }
func (*kernel) stats() []ProgramStats  { return nil }
func (*kernel) close() error           { return nil }

func (*kernel) watch([]Watch, error, func(int, error)) error { return errors.ErrUnsupported }
func (*kernel) watchTasks([]Watch, func(int, error)) error   { return errors.ErrUnsupported }

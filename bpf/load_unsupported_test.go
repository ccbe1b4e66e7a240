//go:build !linux || !(amd64 || arm64)

package bpf

import (
	"errors"
	"testing"
)

func TestUnsupported(t *testing.T) {
	s := Open(Options{})
	defer s.Close()
	for _, h := range s.Hooks() {
		if h.Attached || !errors.Is(h.Err, errors.ErrUnsupported) || h.Remedy == "" {
			t.Errorf("%+v", h)
		}
	}
	if s.Counters() != (Counters{}) {
		t.Errorf("%+v", s.Counters())
	}
}

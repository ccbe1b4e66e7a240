package bpf

import (
	"errors"
	"os"
	"testing"
	"time"
)

// A rehearsal is no event: who waits for one goes on waiting.
func TestRehearse(t *testing.T) {
	s := open(t, OOM)
	ended := make(chan error, 1)
	go func() {
		var e Event
		for {
			if err := s.ReadEvent(&e); err != nil { // what others do on this machine is none of ours
				ended <- err
				return
			}
		}
	}()
	for range 3 {
		if err := s.Rehearse(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			t.Fatalf("ReadEvent returns %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	s.Close()
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("ReadEvent returns %v", err)
	}
}

// Where no program is attached there is nothing to rehearse.
func TestRehearseDisabled(t *testing.T) {
	s := Open(Options{Disabled: true})
	defer s.Close()
	if err := s.Rehearse(); err != nil {
		t.Error(err)
	}
}

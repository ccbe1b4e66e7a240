package main

import (
	"os"
	"testing"
)

// The threads are there to stay: the runtime has no reason to end any.
func TestMakeThreads(t *testing.T) {
	const n = 40 // more than the tests have
	makeThreads(n)
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) < n {
		t.Errorf("%d threads, want at least %d", len(entries), n)
	}
}

package testtree

import (
	"testing"
	"time"
)

// Patience is how long a test waits for what must happen.
const Patience = 30 * time.Second

// Eventually waits for a condition.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, Patience)
		}
	}
}

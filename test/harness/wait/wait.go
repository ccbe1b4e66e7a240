// Package wait lets a test wait for what happens elsewhere.
package wait

import (
	"testing"
	"time"
)

// Until calls check until it returns nil, and ends the test if it does not within
// the limit.
func Until(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %s until %s: %v", limit, what, err)
		}
	}
}

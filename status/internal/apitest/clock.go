package apitest

import (
	"testing"
	"time"
	"unsafe"
)

// Stepped returns a time as it would have been read had the wall clock been set by d
// before: another wall time with the same monotonic reading. Package time cannot
// make one, so this goes into its insides, and checks that they are as expected.
func Stepped(t *testing.T, at time.Time, d time.Duration) time.Time {
	t.Helper()
	after := at
	*(*uint64)(unsafe.Pointer(&after)) += uint64(d/time.Second) << 30 // below are the nanoseconds
	if after.Sub(at) != 0 || after.Round(0).Sub(at.Round(0)) != d {
		t.Fatalf("package time has changed: %v became %v", at, after)
	}
	return after
}

package process

import (
	"bytes"
	"log/slog"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNoHugePages(t *testing.T) {
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_THP_DISABLE, 0, 0, 0, 0) })
	NewMemory(0, slog.New(slog.DiscardHandler))
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	// Since Linux 5.0. A kernel without huge pages says 0 as well.
	if bytes.Contains(status, []byte("THP_enabled:\t1")) {
		t.Error("the kernel may use huge pages")
	}
}

package process

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKeepThreads(t *testing.T) {
	const n = 40 // more than the tests have
	if err := KeepThreads(n); err != nil {
		t.Error(err)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	if len(threads) < n {
		t.Errorf("%d threads, want at least %d", len(threads), n)
	}
}

// A runtime that ends idle threads, or a /proc that does not tell, is reported.
func TestKeepThreadsReportsFailure(t *testing.T) {
	dir := t.TempDir()
	for _, tid := range []string{"1", "2", "3"} {
		if err := os.Mkdir(filepath.Join(dir, tid), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := checkThreads(dir, 3); err != nil {
		t.Error(err)
	}
	if err := checkThreads(dir, 4); err == nil || !strings.Contains(err.Error(), "3 of 4 left") {
		t.Errorf("3 of 4 threads: %v", err)
	}
	if err := checkThreads(filepath.Join(dir, "missing"), 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

package web

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// hangingFile puts a file whose opening hangs in the place of another, or of none.
// Answer ends that for every open of it, and gives the file a text.
func hangingFile(t *testing.T, path string) (answer func(text string)) {
	t.Helper()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return func(text string) {
		t.Helper()
		fifo, err := os.OpenFile(path, os.O_RDWR, 0) // which waits for nobody
		if err != nil {
			t.Fatal(err)
		}
		defer fifo.Close()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

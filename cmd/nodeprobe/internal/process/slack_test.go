package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRelaxTimers(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// This thread and another, which is the one that counts.
	other := make(chan int)
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		other <- unix.Gettid()
		<-done
	}()
	defer close(done)
	threads := []int{unix.Gettid(), <-other}

	err := RelaxTimers()
	if errors.Is(err, fs.ErrPermission) && os.Getenv("NODEPROBE_REQUIRE") != "1" {
		t.Skip("needs CAP_SYS_NICE")
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		file := fmt.Sprintf("/proc/%d/timerslack_ns", thread)
		// 0 restores the default.
		t.Cleanup(func() { _ = os.WriteFile(file, []byte("0"), 0) })
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := strings.TrimSpace(string(b)), fmt.Sprint(timerSlack.Nanoseconds()); got != want {
			t.Errorf("slack of thread %d is %s ns, want %s", thread, got, want)
		}
	}
}

package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

// fullPipe returns a pipe that takes nothing more. A write to it blocks a thread, as it
// does on a file of a disk that hangs.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := unix.Write(fds[1], make([]byte, 4096)); err != nil {
			break
		}
	}
	if err := unix.SetNonblock(fds[1], false); err != nil {
		t.Fatal(err)
	}
	write := os.NewFile(uintptr(fds[1]), "full pipe")
	t.Cleanup(func() {
		unix.Close(fds[0]) // what hangs fails
		write.Close()
	})
	return write
}

// freeAddress returns an address that nothing listens on. The log does not tell the one of
// port 0.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// A standard error that nobody reads holds up neither samples nor scrapes nor the end.
func TestRunBlockedLog(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	tr := testtree.New(t, nil)
	address := freeAddress(t)
	code, pipe := make(chan int, 1), fullPipe(t)
	args := append([]string{"run"}, flags(tr)...)
	args = append(args, "--config", writeConfig(t, "sampleInterval: 100ms\n"), "--web.listen-address="+address, "--log.level=debug")
	go func() { code <- run(ctx, args, &testtree.Log{}, pipe) }()
	testtree.Eventually(t, "ready", func() bool {
		resp, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	for tasks, available := range map[string]string{"3000": "29768", "4000": "28768"} {
		tr.Write("proc/loadavg", "0.20 0.18 0.12 1/"+tasks+" 11206\n")
		testtree.Eventually(t, "a sample", func() bool {
			_, body := get(t, "http://"+address+"/metrics")
			return strings.Contains(body, `nodeprobe_signal_available_tasks{signal="pid.available"} `+available) &&
				strings.Contains(body, "\nnodeprobe_log_lines_dropped_total ")
		})
	}
	stop()
	if got := (&started{code: code}).wait(t); got != 0 {
		t.Errorf("exit code %d", got)
	}
	http.DefaultClient.CloseIdleConnections()
}

// Nor does it change the exit code.
func TestExitCodeWithBlockedLog(t *testing.T) {
	tr := testtree.New(t, nil)
	for want, args := range map[int][]string{
		exitUsage:  {"run", "--colour"},
		exitFailed: append(append([]string{"run"}, flags(tr)...), "--config", writeConfig(t, ""), "--web.listen-address=", "--mode=own"),
	} {
		code, pipe := make(chan int, 1), fullPipe(t)
		go func() { code <- run(t.Context(), args, &testtree.Log{}, pipe) }()
		if got := (&started{code: code}).wait(t); got != want {
			t.Errorf("%v: exit code %d, want %d", args, got, want)
		}
	}
}

// slowWriter takes its time over each write.
type slowWriter struct{ testtree.Log }

func (w *slowWriter) Write(b []byte) (int, error) {
	time.Sleep(flushTimeout / 10)
	return w.Log.Write(b)
}

// What did not fit of an error is counted below it.
func TestPrintErrorTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out slowWriter
		short := strings.Repeat("short\n", 2)
		printError(&out, errors.New(short+strings.Repeat("x", 1<<20)+"\nlost as well"))
		synctest.Wait()
		want := "nodeprobe: short\nnodeprobe: short\nnodeprobe: 2 lines dropped: standard error did not take them in time\n"
		if got := out.String(); got != want {
			t.Errorf("it prints %q, want %q", got, want)
		}
	})
}

// That lines were lost is a line like the others.
func TestLogNotice(t *testing.T) {
	for format, want := range map[string]string{
		"text": `level=WARN msg="log lines dropped: standard error did not take them in time" lines=3`,
		"json": `"level":"WARN","msg":"log lines dropped: standard error did not take them in time","lines":3}`,
	} {
		var out testtree.Log
		w := newLogWriter(&out, format)
		_, _ = w.Write(append([]byte("a\nb\n"), make([]byte, 1<<20)...)) // never fits
		w.Flush(patience)
		if got := out.String(); !strings.HasSuffix(got, want+"\n") {
			t.Errorf("%s: %q", format, got)
		}
	}
}

package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

// patience is how long a test waits for something that must happen.
const patience = 30 * time.Second

// listenAsManager plays systemd. It returns the messages.
func listenAsManager(t *testing.T, address string) <-chan string {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv(envNotifySocket, address)
	messages := make(chan string, 4096)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				close(messages)
				return
			}
			messages <- string(buf[:n])
		}
	}()
	return messages
}

func next(t *testing.T, messages <-chan string) string {
	t.Helper()
	select {
	case message := <-messages:
		return message
	case <-time.After(patience):
		t.Fatalf("no message within %s", patience)
		return ""
	}
}

func TestSupervisor(t *testing.T) {
	for name, address := range map[string]string{
		"path": filepath.Join(t.TempDir(), "notify"), "abstract": fmt.Sprintf("@nodeprobe-test-%d", os.Getpid()),
	} {
		t.Run(name, func(t *testing.T) {
			messages := listenAsManager(t, address)
			t.Setenv(envWatchdogTime, "2000") // µs: a ping every millisecond
			t.Setenv(envWatchdogPID, strconv.Itoa(os.Getpid()))
			log := &testtree.Log{}
			var dead atomic.Bool
			var asked atomic.Int64
			var status atomic.Pointer[string]
			set := func(text string) { status.Store(&text) }
			set("one")
			alive := func() error {
				asked.Add(1)
				if dead.Load() {
					return errors.New("stuck")
				}
				return nil
			}
			s := NewSupervisor(SupervisorConfig{
				Alive: alive, Status: func() string { return *status.Load() }, Logger: slog.New(slog.NewTextHandler(log, nil)),
			})
			s.timeout = patience
			for _, name := range []string{envNotifySocket, envWatchdogTime, envWatchdogPID} {
				if value, set := os.LookupEnv(name); set {
					t.Errorf("%s=%s is left for children", name, value)
				}
			}

			cause := errors.New("stop")
			ctx, stop := context.WithCancelCause(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx) }()
			pings := 0
			want := func(message string) { // after any number of pings
				t.Helper()
				got := next(t, messages)
				for ; got == "WATCHDOG=1" && got != message; got = next(t, messages) {
					pings++
				}
				if got != message {
					t.Errorf("sent %q, want %q", got, message)
				}
			}
			if got := next(t, messages); got != "READY=1\nSTATUS=one" {
				t.Errorf("sent %q first", got)
			}
			want("WATCHDOG=1")
			want("WATCHDOG=1")
			s.Wake() // no change
			set("two")
			s.Wake()
			want("STATUS=two")

			dead.Store(true)
			testtree.Eventually(t, "a ping withheld", func() bool { return strings.Contains(log.String(), "watchdog ping withheld") })
			set("three")
			s.Wake()
			want("STATUS=three")
			before := asked.Load()
			testtree.Eventually(t, "more checks", func() bool { return asked.Load() > before+20 })
			pings = 0
			set("four")
			s.Wake()
			want("STATUS=four")
			if pings != 0 {
				t.Errorf("%d pings of a process that is stuck", pings)
			}
			if n := strings.Count(log.String(), "\n"); n != 1 {
				t.Errorf("%d lines:\n%s", n, log)
			}
			dead.Store(false)
			want("WATCHDOG=1")

			s.Reloading()
			var micros int64
			got := next(t, messages)
			for ; got == "WATCHDOG=1"; got = next(t, messages) {
			}
			if _, err := fmt.Sscanf(got, "RELOADING=1\nMONOTONIC_USEC=%d", &micros); err != nil || micros <= 0 {
				t.Errorf("sent %q", got)
			}
			s.Reloaded()
			want("READY=1")
			stop(cause)
			want("STOPPING=1\nSTATUS=stopping")
			if err := <-done; !errors.Is(err, cause) {
				t.Errorf("Run returned %v", err)
			}
		})
	}
}

func TestNewSupervisor(t *testing.T) {
	for _, test := range []struct {
		name, address, micros, pid string
		notifies                   bool
		interval                   time.Duration
	}{
		{"nobody", "", "1000000", "", false, 0},
		{"not a unix socket", "vsock:2:1234", "", "", false, 0},
		{"no watchdog", "@x", "", "", true, 0},
		{"a watchdog", "@x", "30000000", "", true, 15 * time.Second},
		{"our watchdog", "@x", "30000000", strconv.Itoa(os.Getpid()), true, 15 * time.Second},
		{"another process's watchdog", "@x", "30000000", "1", true, 0},
		{"not a number", "@x", "soon", "", true, 0},
		{"no time", "@x", "0", "", true, 0},
		{"for ever", "@x", "9223372036854775807", "", true, 12 * time.Hour},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv(envNotifySocket, test.address)
			t.Setenv(envWatchdogTime, test.micros)
			t.Setenv(envWatchdogPID, test.pid)
			s := NewSupervisor(SupervisorConfig{Logger: slog.New(slog.DiscardHandler)})
			if (s.address != "") != test.notifies {
				t.Fatalf("notifies %q", s.address)
			}
			if s.interval != test.interval {
				t.Errorf("pings every %s, want %s", s.interval, test.interval)
			}
		})
	}
}

// Without a manager, a Supervisor does nothing until it is stopped.
func TestNoSupervisor(t *testing.T) {
	t.Setenv(envNotifySocket, "")
	s := NewSupervisor(SupervisorConfig{Logger: slog.New(slog.DiscardHandler)}) // nothing else is called
	s.Wake()
	s.Reloading()
	s.Reloaded()
	cause := errors.New("stop")
	ctx, stop := context.WithCancelCause(t.Context())
	stop(cause)
	if err := s.Run(ctx); !errors.Is(err, cause) {
		t.Errorf("Run returned %v", err)
	}
}

// A manager that does not read delays a message by the timeout and no more, and costs one
// line.
func TestSupervisorDoesNotRead(t *testing.T) {
	address := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv(envNotifySocket, address)
	log := &testtree.Log{}
	s := NewSupervisor(SupervisorConfig{Logger: slog.New(slog.NewTextHandler(log, nil))})
	s.timeout = time.Millisecond
	testtree.Eventually(t, "the queue is full", func() bool {
		s.notify("READY=1")
		return log.String() != ""
	})
	s.notify("READY=1")
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "cannot notify service manager") || !strings.Contains(text, "timeout") {
		t.Errorf("logged\n%s", text)
	}
}

// A manager that is gone costs one line, and another when it is back.
func TestSupervisorIsGone(t *testing.T) {
	log := &testtree.Log{}
	address := filepath.Join(t.TempDir(), "notify")
	t.Setenv(envNotifySocket, address)
	s := NewSupervisor(SupervisorConfig{Logger: slog.New(slog.NewTextHandler(log, nil))})
	s.notify("READY=1")
	s.notify("WATCHDOG=1")
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "no such file") {
		t.Errorf("logged\n%s", text)
	}
	messages := listenAsManager(t, address)
	s.notify("WATCHDOG=1")
	s.notify("WATCHDOG=1")
	if got := next(t, messages); got != "WATCHDOG=1" {
		t.Errorf("sent %q", got)
	}
	if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "can be notified again") {
		t.Errorf("logged\n%s", text)
	}
}

package main

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
	"testing/synctest"
	"time"
)

// listenAsManager plays systemd: it returns what a service tells it.
func listenAsManager(t *testing.T, address string) <-chan string {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv(envNotifySocket, address)
	told := make(chan string, 4096)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				close(told)
				return
			}
			told <- string(buf[:n])
		}
	}()
	return told
}

func next(t *testing.T, told <-chan string) string {
	t.Helper()
	select {
	case message := <-told:
		return message
	case <-time.After(patience):
		t.Fatalf("nothing is told within %s", patience)
		return ""
	}
}

func TestSupervisor(t *testing.T) {
	for name, address := range map[string]string{
		"path": filepath.Join(t.TempDir(), "notify"), "abstract": fmt.Sprintf("@nodeprobe-test-%d", os.Getpid()),
	} {
		t.Run(name, func(t *testing.T) {
			told := listenAsManager(t, address)
			t.Setenv(envWatchdogTime, "2000") // µs: a sign of life each millisecond
			t.Setenv(envWatchdogPID, strconv.Itoa(os.Getpid()))
			log := &logBuffer{}
			s := newSupervisor(slog.New(slog.NewTextHandler(log, nil)))
			s.patience = patience
			for _, name := range []string{envNotifySocket, envWatchdogTime, envWatchdogPID} {
				if value, set := os.LookupEnv(name); set {
					t.Errorf("%s=%s is left for children", name, value)
				}
			}
			var dead atomic.Bool
			var asked atomic.Int64
			var status atomic.Pointer[string]
			set := func(text string) { status.Store(&text) }
			set("one")
			s.alive = func() error {
				asked.Add(1)
				if dead.Load() {
					return errors.New("stuck")
				}
				return nil
			}
			s.status = func() string { return *status.Load() }

			cause := errors.New("told to stop")
			ctx, stop := context.WithCancelCause(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx) }()
			alive := 0
			want := func(message string) { // whatever signs of life come before it
				t.Helper()
				got := next(t, told)
				for ; got == "WATCHDOG=1" && got != message; got = next(t, told) {
					alive++
				}
				if got != message {
					t.Errorf("told %q, want %q", got, message)
				}
			}
			if got := next(t, told); got != "READY=1\nSTATUS=one" {
				t.Errorf("told %q first", got)
			}
			want("WATCHDOG=1")
			want("WATCHDOG=1")
			s.wake() // no news
			set("two")
			s.wake()
			want("STATUS=two")

			dead.Store(true)
			eventually(t, "a doubt", func() bool { return strings.Contains(log.String(), "is not told that") })
			set("three")
			s.wake()
			want("STATUS=three")
			before := asked.Load()
			eventually(t, "more doubts", func() bool { return asked.Load() > before+20 })
			alive = 0
			set("four")
			s.wake()
			want("STATUS=four")
			if alive != 0 {
				t.Errorf("%d signs of life of what is stuck", alive)
			}
			if n := strings.Count(log.String(), "\n"); n != 1 {
				t.Errorf("%d lines:\n%s", n, log)
			}
			dead.Store(false)
			want("WATCHDOG=1")

			s.reloading()
			var micros int64
			got := next(t, told)
			for ; got == "WATCHDOG=1"; got = next(t, told) {
			}
			if _, err := fmt.Sscanf(got, "RELOADING=1\nMONOTONIC_USEC=%d", &micros); err != nil || micros <= 0 {
				t.Errorf("told %q", got)
			}
			s.reloaded()
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
		wanted                     bool
		interval                   time.Duration
	}{
		{"nobody", "", "1000000", "", false, 0},
		{"not a unix socket", "vsock:2:1234", "", "", false, 0},
		{"no watchdog", "@x", "", "", true, 0},
		{"a watchdog", "@x", "30000000", "", true, 15 * time.Second},
		{"a watchdog of ours", "@x", "30000000", strconv.Itoa(os.Getpid()), true, 15 * time.Second},
		{"somebody else's watchdog", "@x", "30000000", "1", true, 0},
		{"not a number", "@x", "soon", "", true, 0},
		{"no time", "@x", "0", "", true, 0},
		{"for ever", "@x", "9223372036854775807", "", true, 12 * time.Hour},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv(envNotifySocket, test.address)
			t.Setenv(envWatchdogTime, test.micros)
			t.Setenv(envWatchdogPID, test.pid)
			s := newSupervisor(slog.New(slog.DiscardHandler))
			if (s != nil) != test.wanted {
				t.Fatalf("supervisor %+v", s)
			}
			if s != nil && s.interval != test.interval {
				t.Errorf("a sign of life each %s, want %s", s.interval, test.interval)
			}
		})
	}
	var nobody *supervisor
	nobody.wake()
	nobody.reloading()
	nobody.reloaded()
}

// A service manager that is gone costs one line.
func TestSupervisorIsGone(t *testing.T) {
	log := &logBuffer{}
	t.Setenv(envNotifySocket, filepath.Join(t.TempDir(), "nobody"))
	s := newSupervisor(slog.New(slog.NewTextHandler(log, nil)))
	s.tell("READY=1")
	s.tell("WATCHDOG=1")
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "no such file") {
		t.Errorf("logged\n%s", text)
	}
}

func TestPulse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pulse{name: "loop"}
		want := func(stuck bool) {
			t.Helper()
			if err := p.alive(); (err != nil) != stuck {
				t.Errorf("got %v", err)
			}
		}
		time.Sleep(time.Hour)
		want(false) // it has not begun
		p.beat(time.Minute)
		time.Sleep(time.Minute)
		want(false)
		time.Sleep(time.Second)
		want(false) // it may go on right now
		time.Sleep(pulseGrace)
		want(true)
		p.beat(time.Second)
		want(false)
	})
}

// A process that was stopped is no loop that is stuck, however often it was.
func TestPulseAfterPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pulse{name: "loop"}
		for range 3 {
			p.beat(time.Minute)
			time.Sleep(time.Hour)
			if err := p.alive(); err != nil {
				t.Errorf("before the loop had a chance: %v", err)
			}
		}
	})
}

// What is asked by a watchdog: not whether the API server is there.
func TestDaemonIsAlive(t *testing.T) {
	tr := newTree(t, nil)
	told := listenAsManager(t, filepath.Join(t.TempDir(), "notify"))
	t.Setenv(envWatchdogTime, "20000")
	d, _ := testDaemon(t, tr, "sampleInterval: 1h\n")
	d.supervisor.patience = patience
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.run(ctx, nil) }()
	if got, want := next(t, told), "READY=1\nSTATUS=mode observe, node 192.0.2.7: MemoryPressure=False DiskPressure=False PIDPressure=False"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	if got := next(t, told); got != "WATCHDOG=1" {
		t.Errorf("told %q", got)
	}
	stop()
	<-done

	own := &owner{pulses: [2]pulse{{name: "node status"}, {name: "heartbeat"}}}
	augment := &augmenter{pulse: pulse{name: "node conditions"}}
	for p, writer := range map[*pulse]writer{&own.pulses[0]: own, &own.pulses[1]: own, &augment.pulse: augment} {
		d.writer = writer
		if err := d.alive(); err != nil {
			t.Error(err)
		}
		p.beat(-time.Hour)
		p.doubted = time.Now().Add(-pulseGrace)
		if err := d.alive(); err == nil || !strings.Contains(err.Error(), p.name+" is stuck") {
			t.Errorf("got %v", err)
		}
		p.beat(time.Hour)
	}
	d.writer = nil
}

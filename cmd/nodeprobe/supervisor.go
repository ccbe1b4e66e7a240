package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// supervisor is the service manager that has started this process and wants to
// hear from it: systemd, or who else speaks sd_notify(3). A nil one is nobody.
type supervisor struct {
	address string // of its socket
	// interval is how often it wants to hear that we are alive; 0 is never.
	interval time.Duration
	patience time.Duration // how long one that does not read may hold us up
	alive    func() error
	status   func() string // one line for people
	log      *slog.Logger

	poke chan struct{}

	// Owned by Run.
	said  string // the status that was last told
	stuck bool   // it is not told that we are alive

	mu   sync.Mutex // guards the rest, and one message after the other
	deaf string     // why it could not be told something
}

// The variables by which it tells what it wants.
const (
	envNotifySocket = "NOTIFY_SOCKET"
	envWatchdogTime = "WATCHDOG_USEC"
	envWatchdogPID  = "WATCHDOG_PID"
)

// newSupervisor finds out who has started this process, and keeps it to itself.
func newSupervisor(log *slog.Logger) *supervisor {
	address, micros, pid := os.Getenv(envNotifySocket), os.Getenv(envWatchdogTime), os.Getenv(envWatchdogPID)
	for _, name := range []string{envNotifySocket, envWatchdogTime, envWatchdogPID} {
		os.Unsetenv(name)
	}
	if address == "" {
		return nil
	}
	if address[0] != '/' && address[0] != '@' {
		log.Warn("the service manager is not told anything: not a unix socket", "address", address)
		return nil
	}
	s := &supervisor{
		address: address, patience: time.Second, log: log, poke: make(chan struct{}, 1),
		alive: func() error { return nil }, status: func() string { return "" },
	}
	if pid == "" || pid == strconv.Itoa(os.Getpid()) {
		s.interval = signOfLife(micros)
	}
	return s
}

// signOfLife is half of what the watchdog waits; 0 if there is none.
func signOfLife(micros string) time.Duration {
	n, err := strconv.ParseInt(micros, 10, 64)
	if err != nil || n <= 0 {
		return 0
	}
	return max(time.Duration(min(n, int64(24*time.Hour/time.Microsecond)))*time.Microsecond/2, time.Millisecond)
}

// wake has the status told if it has changed. It never blocks.
func (s *supervisor) wake() {
	if s == nil {
		return
	}
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// Run says that the service is ready, then that it is alive for as long as it is,
// and what its status is if that has changed when it is woken. When ctx ends it
// says so, and returns the cause.
func (s *supervisor) Run(ctx context.Context) error {
	s.said = s.status()
	s.tell("READY=1", "STATUS="+s.said)
	timer := time.NewTimer(s.vouch())
	defer timer.Stop()
	if s.interval == 0 {
		timer.Stop()
	}
	for {
		select {
		case <-ctx.Done():
			s.tell("STOPPING=1", "STATUS=stopping")
			return context.Cause(ctx)
		case <-s.poke:
		case <-timer.C:
			timer.Reset(s.vouch())
		}
		if status := s.status(); status != s.said {
			s.said = status
			s.tell("STATUS=" + status)
		}
	}
}

// vouch says that the service is alive, unless it is not, and returns when to
// come back: sooner after a doubt, which may be over before the watchdog bites.
func (s *supervisor) vouch() (again time.Duration) {
	if s.interval == 0 {
		return 0
	}
	err := s.alive()
	if err == nil {
		if s.stuck {
			s.stuck = false
			s.log.Info("the watchdog is told again that nodeprobe is alive")
		}
		s.tell("WATCHDOG=1")
		return s.interval
	}
	if !s.stuck {
		s.stuck = true
		s.log.Error("the watchdog is not told that nodeprobe is alive", "err", err)
	}
	return max(s.interval/5, time.Millisecond)
}

// reloading says that a configuration is being read, until reloaded.
func (s *supervisor) reloading() {
	if s == nil {
		return
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		s.log.Debug("monotonic clock cannot be read", "err", err)
	}
	s.tell("RELOADING=1", "MONOTONIC_USEC="+strconv.FormatInt(now.Nano()/1000, 10))
}

// reloaded says that this has ended; how is in the status.
func (s *supervisor) reloaded() {
	if s != nil {
		s.tell("READY=1")
		s.wake()
	}
}

// tell sends one message.
func (s *supervisor) tell(lines ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.send(strings.Join(lines, "\n")); err != nil {
		if text := err.Error(); text != s.deaf {
			s.deaf = text
			s.log.Warn("the service manager could not be told", "err", err)
		}
		return
	}
	s.deaf = ""
}

// send connects anew each time: it is rare, and the other end may have been
// replaced since.
func (s *supervisor) send(message string) (err error) {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: s.address, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("connect to service manager: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := conn.SetWriteDeadline(time.Now().Add(s.patience)); err != nil {
		return fmt.Errorf("tell service manager: %w", err)
	}
	if _, err := conn.Write([]byte(message)); err != nil {
		return fmt.Errorf("tell service manager: %w", err)
	}
	return nil
}

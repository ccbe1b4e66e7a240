package process

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

	"github.com/nodeprobe/nodeprobe/internal/once"
)

// SupervisorConfig is what a [Supervisor] is made from. Every field is required.
type SupervisorConfig struct {
	// Alive returns why the process should be restarted, or nil. It must not block.
	Alive func() error
	// Status returns one line for people. It must not block.
	Status func() string
	Logger *slog.Logger
}

// Supervisor notifies the service manager that started this process, systemd or another
// that implements sd_notify(3). If none did, its methods do nothing.
//
// Package daemon of go-systemd would not do: it writes without a deadline, and a manager
// that does not read would stop the watchdog pings, reloading and exiting.
type Supervisor struct {
	cfg     SupervisorConfig
	address string // of the manager's socket; "" without a manager
	// interval is the time between two watchdog pings; 0 without a watchdog.
	interval time.Duration
	timeout  time.Duration // of one message

	wakeup chan struct{}

	// Owned by Run.
	status   string // the latest that was sent
	withheld bool   // watchdog pings are, whatever the errors since

	mu sync.Mutex // serializes messages
}

// The variables in which the manager passes its socket and its watchdog.
const (
	envNotifySocket = "NOTIFY_SOCKET"
	envWatchdogTime = "WATCHDOG_USEC"
	envWatchdogPID  = "WATCHDOG_PID"
)

// NewSupervisor returns a Supervisor for the manager in NOTIFY_SOCKET, with a watchdog as
// in WATCHDOG_USEC and WATCHDOG_PID. It removes these variables from the environment.
func NewSupervisor(cfg SupervisorConfig) *Supervisor {
	address, micros, pid := os.Getenv(envNotifySocket), os.Getenv(envWatchdogTime), os.Getenv(envWatchdogPID)
	for _, name := range []string{envNotifySocket, envWatchdogTime, envWatchdogPID} {
		os.Unsetenv(name)
	}
	cfg.Logger = once.Logger(cfg.Logger)
	s := &Supervisor{cfg: cfg, timeout: time.Second, wakeup: make(chan struct{}, 1)}
	switch {
	case address == "":
	case address[0] != '/' && address[0] != '@':
		cfg.Logger.Warn("cannot notify service manager: not a unix socket", "address", address)
	default:
		s.address = address
		if pid == "" || pid == strconv.Itoa(os.Getpid()) {
			s.interval = pingInterval(micros)
		}
	}
	return s
}

// pingInterval is half of the watchdog's timeout, as sd_watchdog_enabled(3) recommends;
// 0 without one.
func pingInterval(micros string) time.Duration {
	n, err := strconv.ParseInt(micros, 10, 64)
	if err != nil || n <= 0 {
		return 0
	}
	return max(time.Duration(min(n, int64(24*time.Hour/time.Microsecond)))*time.Microsecond/2, time.Millisecond)
}

// Wake sends the status if it has changed. It does not block.
func (s *Supervisor) Wake() {
	select {
	case s.wakeup <- struct{}{}:
	default:
	}
}

// Run sends READY=1, then watchdog pings while the process is alive, and the status when
// it has changed. When ctx ends it sends STOPPING=1 and returns the cause.
func (s *Supervisor) Run(ctx context.Context) error {
	if s.address == "" {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	s.status = s.cfg.Status()
	s.notify("READY=1", "STATUS="+s.status)
	timer := time.NewTimer(s.ping())
	defer timer.Stop()
	if s.interval == 0 {
		timer.Stop()
	}
	for {
		select {
		case <-ctx.Done():
			s.notify("STOPPING=1", "STATUS=stopping")
			return context.Cause(ctx)
		case <-s.wakeup:
		case <-timer.C:
			timer.Reset(s.ping())
		}
		if status := s.cfg.Status(); status != s.status {
			s.status = status
			s.notify("STATUS=" + status)
		}
	}
}

// ping pings the watchdog if the process is alive, and returns when to do so again:
// sooner if it is not, as it may recover before the watchdog's timeout.
func (s *Supervisor) ping() (next time.Duration) {
	if s.interval == 0 {
		return 0
	}
	err := s.cfg.Alive()
	if err == nil {
		if s.withheld {
			s.withheld = false
			s.cfg.Logger.Info("watchdog pings resumed")
		}
		s.notify("WATCHDOG=1")
		return s.interval
	}
	if !s.withheld {
		s.withheld = true
		s.cfg.Logger.Error("watchdog ping withheld", "err", err)
	}
	return max(s.interval/5, time.Millisecond)
}

// Reloading notifies the manager that the configuration is being reloaded. Call Reloaded
// at the end, whether or not the new configuration was accepted.
func (s *Supervisor) Reloading() {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		s.cfg.Logger.Debug("cannot read monotonic clock", "err", err)
	}
	s.notify("RELOADING=1", "MONOTONIC_USEC="+strconv.FormatInt(now.Nano()/1000, 10))
}

// Reloaded notifies the manager that reloading is over.
func (s *Supervisor) Reloaded() {
	s.notify("READY=1")
	s.Wake()
}

// notify sends one message.
func (s *Supervisor) notify(lines ...string) {
	if s.address == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.send(strings.Join(lines, "\n")); err != nil {
		s.cfg.Logger.Warn("cannot notify service manager", once.Failure, "notify", "err", err)
		return
	}
	s.cfg.Logger.Info("service manager can be notified again", once.Recovery, "notify")
}

// send connects for each message. Messages are rare, and the socket may have been
// replaced since the last.
func (s *Supervisor) send(message string) (err error) {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: s.address, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("connect to service manager: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := conn.SetWriteDeadline(time.Now().Add(s.timeout)); err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	if _, err := conn.Write([]byte(message)); err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	return nil
}

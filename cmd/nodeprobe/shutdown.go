package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"
	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/status"
)

// shutdownWatcher hears from logind that the machine is about to shut down, and
// holds it up until that has been told to the API server: the node is not ready
// from then on, and the cluster need not wait for the Lease to run out.
type shutdownWatcher struct {
	address string        // of the system bus
	grace   time.Duration // how long the shutdown is held up at most
	// leave has the Node say that it is not ready, and why; nil takes that back.
	// told is true once the API server knows.
	leave  func(why error)
	told   func() bool
	record func(kind, reason, message string)
	log    *slog.Logger

	lock *os.File // logind's inhibitor: it waits while this is open
	said string   // the error that was last logged
}

// errShuttingDown is what the Ready condition says then: the kubelet's words.
var errShuttingDown = errors.New("node is shutting down")

// systemBus is where the node's D-Bus listens.
func systemBus(rootfs string) string {
	return cmp.Or(os.Getenv("DBUS_SYSTEM_BUS_ADDRESS"), "unix:path="+filepath.Join(rootfs, "run/dbus/system_bus_socket"))
}

// Run listens until ctx ends, and returns its cause. A bus that is not there, or
// goes away, is looked for again and again.
func (w *shutdownWatcher) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := w.listen(ctx)
		w.release()
		if ctx.Err() != nil {
			break
		}
		if err.Error() != w.said {
			w.said = err.Error()
			w.log.Warn("shutdowns of the machine go unnoticed", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Second):
		}
	}
	return context.Cause(ctx)
}

const (
	logind        = "org.freedesktop.login1"
	logindManager = logind + ".Manager"
)

// listen serves one connection, until it breaks or ctx ends.
func (w *shutdownWatcher) listen(ctx context.Context) error {
	bus, err := dbus.Connect(w.address, dbus.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", w.address, err)
	}
	defer bus.Close()
	err = bus.AddMatchSignalContext(ctx, dbus.WithMatchInterface(logindManager), dbus.WithMatchMember("PrepareForShutdown"))
	if err != nil {
		return fmt.Errorf("subscribe to PrepareForShutdown: %w", err)
	}
	signals := make(chan *dbus.Signal, 4)
	bus.Signal(signals)
	if err := w.inhibit(ctx, bus); err != nil {
		return err
	}
	w.said = ""
	w.log.Info("shutdowns of the machine are told to the API server first", "grace", w.grace)
	for signal := range signals {
		if signal.Name != logindManager+".PrepareForShutdown" || len(signal.Body) != 1 {
			continue
		}
		if begins, ok := signal.Body[0].(bool); ok && begins {
			w.begin(ctx)
		} else if ok {
			w.cancel()
			if err := w.inhibit(ctx, bus); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("connection to %s is lost", w.address)
}

// inhibit takes logind's lock, which delays a shutdown for as long as it is held,
// but no longer than logind's InhibitDelayMaxSec.
func (w *shutdownWatcher) inhibit(ctx context.Context, bus *dbus.Conn) error {
	w.release()
	ctx, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	var fd dbus.UnixFD
	err := bus.Object(logind, "/org/freedesktop/login1").CallWithContext(ctx, logindManager+".Inhibit", 0,
		"shutdown", status.Manager, "tell Kubernetes that the node is not ready", "delay").Store(&fd)
	if err != nil {
		return fmt.Errorf("delay shutdowns: %w", err)
	}
	w.lock = os.NewFile(uintptr(fd), "inhibitor")
	return nil
}

// begin tells the API server, and lets the shutdown go on.
func (w *shutdownWatcher) begin(ctx context.Context) {
	w.log.Info("the machine is shutting down")
	w.record(v1.EventTypeNormal, "Shutdown", "Shutdown manager detected shutdown event")
	w.leave(errShuttingDown)
	for deadline := time.Now().Add(w.grace); !w.told() && time.Now().Before(deadline) && ctx.Err() == nil; {
		time.Sleep(20 * time.Millisecond)
	}
	w.release()
}

// cancel takes the announcement back.
func (w *shutdownWatcher) cancel() {
	w.log.Info("the shutdown was cancelled")
	w.record(v1.EventTypeNormal, "Shutdown", "Shutdown manager detected shutdown cancellation")
	w.leave(nil)
}

func (w *shutdownWatcher) release() {
	if w.lock != nil {
		w.lock.Close()
		w.lock = nil
	}
}

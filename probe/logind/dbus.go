package logind

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	login1     = "org.freedesktop.login1"
	login1Path = dbus.ObjectPath("/org/freedesktop/login1")
	manager    = login1 + ".Manager"
)

// SystemBus returns the address of the node's system bus, whose root directory is mounted
// at rootfs: $DBUS_SYSTEM_BUS_ADDRESS if it is set, else the usual socket.
func SystemBus(rootfs string) string {
	return cmp.Or(os.Getenv("DBUS_SYSTEM_BUS_ADDRESS"), "unix:path="+filepath.Join(rootfs, "run/dbus/system_bus_socket"))
}

// dbusBus is logind on a real bus.
type dbusBus struct {
	conn   *dbus.Conn
	end    context.CancelCauseFunc // of the connection's context
	object dbus.BusObject
	who    string
	hints  chan struct{}
}

// dial connects to the bus and subscribes to PrepareForShutdown. ctx ends the connection.
func dial(ctx context.Context, address, who string) (bus, error) {
	conn, end, err := connect(ctx, address, callTimeout)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	b := &dbusBus{conn: conn, end: end, object: conn.Object(login1, login1Path), who: who, hints: make(chan struct{}, 1)}
	signals := make(chan *dbus.Signal, 4)
	conn.Signal(signals)
	go b.forward(signals)
	ctx, stop := context.WithTimeout(ctx, callTimeout)
	defer stop()
	err = conn.AddMatchSignalContext(ctx, dbus.WithMatchSender(login1), dbus.WithMatchObjectPath(login1Path),
		dbus.WithMatchInterface(manager), dbus.WithMatchMember("PrepareForShutdown"))
	if err != nil {
		b.close()
		return nil, fmt.Errorf("subscribe to PrepareForShutdown: %w", err)
	}
	return b, nil
}

var errSilent = errors.New("no answer in time")

// connect connects and authenticates, which knows no deadline, within timeout. ctx ends
// the connection, and so does end, which the caller must call.
func connect(ctx context.Context, address string, timeout time.Duration) (conn *dbus.Conn, end context.CancelCauseFunc, err error) {
	ctx, end = context.WithCancelCause(ctx)
	timer := time.AfterFunc(timeout, func() { end(errSilent) })
	defer timer.Stop()
	if conn, err = dbus.Connect(address, dbus.WithContext(ctx)); err != nil {
		defer end(nil)
		return nil, nil, cmp.Or(context.Cause(ctx), err)
	}
	return conn, end, nil
}

// forward turns signals into hints until the connection is closed.
func (b *dbusBus) forward(signals <-chan *dbus.Signal) {
	defer close(b.hints)
	for signal := range signals {
		if signal.Name != manager+".PrepareForShutdown" {
			continue
		}
		select {
		case b.hints <- struct{}{}:
		default: // one is waiting already
		}
	}
}

// inhibit calls Inhibit. logind waits until the descriptor that it returns is closed, but
// no longer than InhibitDelayMaxSec.
func (b *dbusBus) inhibit(ctx context.Context) (io.Closer, error) {
	var fd dbus.UnixFD
	err := b.object.CallWithContext(ctx, manager+".Inhibit", 0,
		"shutdown", b.who, "report to Kubernetes that the node is not ready", "delay").Store(&fd)
	if refused, ok := errors.AsType[dbus.Error](err); ok && refused.Name == login1+".OperationInProgress" {
		return nil, fmt.Errorf("take inhibitor lock: %w", errInProgress)
	}
	if err != nil {
		return nil, fmt.Errorf("take inhibitor lock: %w", err)
	}
	return os.NewFile(uintptr(fd), "inhibitor"), nil
}

// preparing reads the property PreparingForShutdown.
func (b *dbusBus) preparing(ctx context.Context) (preparing bool, err error) {
	err = b.object.CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, manager, "PreparingForShutdown").Store(&preparing)
	if err != nil {
		return false, fmt.Errorf("read PreparingForShutdown: %w", err)
	}
	return preparing, nil
}

func (b *dbusBus) changes() <-chan struct{} { return b.hints }

func (b *dbusBus) close() {
	b.conn.Close()
	b.end(nil)
}

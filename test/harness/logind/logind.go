// Package logind plays systemd-logind on a D-Bus of its own: a real dbus-daemon,
// and the two things of logind that matter to somebody who delays a shutdown.
package logind

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

const (
	name  = "org.freedesktop.login1"
	path  = dbus.ObjectPath("/org/freedesktop/login1")
	iface = name + ".Manager"
)

// busConfig is the bus's, in which SOCKET is where it listens.
//
//go:embed bus.conf
var busConfig string

// Logind is on a bus.
type Logind struct {
	// Address is that of the bus.
	Address string

	bus       *dbus.Conn
	locks     chan *Lock
	preparing atomic.Bool
}

// Lock is an inhibitor that somebody has taken.
type Lock struct {
	What, Who, Why, Mode string

	held *os.File // the end of a pipe whose other end the holder has
}

// Start runs a bus, and logind on it, until the test ends. It needs dbus-daemon.
func Start(t testing.TB) *Logind {
	t.Helper()
	need.Command(t, "dbus-daemon", "dbus-daemon")
	dir := t.TempDir()
	socket, config := filepath.Join(dir, "bus"), filepath.Join(dir, "bus.conf")
	must.OK(t, os.WriteFile(config, []byte(strings.Replace(busConfig, "SOCKET", socket, 1)), 0o600))
	daemon := must.Get(process.Start(process.Spec{
		Path: "dbus-daemon", LogFile: filepath.Join(dir, "bus.log"),
		Args: []string{"--config-file=" + config, "--nofork", "--nopidfile"},
	}))(t)
	t.Cleanup(func() { daemon.Stop(5 * time.Second) })
	l := &Logind{Address: "unix:path=" + socket, locks: make(chan *Lock, 16)}
	must.OK(t, daemon.WaitReady(t.Context(), func(context.Context) (err error) {
		l.bus, err = dbus.Connect(l.Address)
		return err
	}))
	t.Cleanup(func() { l.bus.Close() })
	must.OK(t, l.serve())
	return l
}

func (l *Logind) serve() error {
	if err := l.bus.Export(manager{l}, path, iface); err != nil {
		return err
	}
	if err := l.bus.Export(properties{l}, path, "org.freedesktop.DBus.Properties"); err != nil {
		return err
	}
	reply, err := l.bus.RequestName(name, dbus.NameFlagDoNotQueue)
	if err == nil && reply != dbus.RequestNameReplyPrimaryOwner {
		err = errors.New("play logind: the name is taken")
	}
	return err
}

// manager has the methods that are called over the bus.
type manager struct{ l *Logind }

// Inhibit hands out a lock, which is given back by closing it. Like the real one it hands
// out none while a shutdown is being prepared.
func (m manager) Inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	if m.l.preparing.Load() {
		return 0, dbus.NewError(name+".OperationInProgress", []any{"The operation inhibition has been requested for is already running"})
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	m.l.locks <- &Lock{What: what, Who: who, Why: why, Mode: mode, held: os.NewFile(uintptr(pipe[0]), "lock")}
	// The library sends a copy of the descriptor after this has returned.
	time.AfterFunc(50*time.Millisecond, func() { unix.Close(pipe[1]) })
	return dbus.UnixFD(pipe[1]), nil
}

// properties has the properties that are read over the bus.
type properties struct{ l *Logind }

// Get returns PreparingForShutdown.
func (p properties) Get(from, property string) (dbus.Variant, *dbus.Error) {
	if from != iface || property != "PreparingForShutdown" {
		return dbus.Variant{}, dbus.NewError("org.freedesktop.DBus.Error.UnknownProperty", []any{from + "." + property})
	}
	return dbus.MakeVariant(p.l.preparing.Load()), nil
}

// NextLock waits for somebody to take a lock.
func (l *Logind) NextLock(ctx context.Context) (*Lock, error) {
	select {
	case lock := <-l.locks:
		return lock, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for an inhibitor: %w", context.Cause(ctx))
	}
}

// WaitReleased waits until the holder has given the lock back.
func (k *Lock) WaitReleased(ctx context.Context) error {
	defer k.held.Close()
	defer context.AfterFunc(ctx, func() { _ = k.held.SetReadDeadline(time.Now()) })()
	var b [1]byte
	if _, err := k.held.Read(b[:]); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("wait for the inhibitor's release: %w", context.Cause(ctx))
	}
	return nil
}

// PrepareForShutdown announces a shutdown, or that it was cancelled.
func (l *Logind) PrepareForShutdown(begins bool) error {
	l.preparing.Store(begins)
	return l.bus.Emit(path, iface+".PrepareForShutdown", begins)
}

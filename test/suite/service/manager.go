// Package service runs nodeprobe as a service manager would, and plays the
// manager: what it is told, reloads, and what the process may do.
package service

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"
)

// Manager listens to what a service tells it, as systemd does (sd_notify(3)).
type Manager struct {
	// Address is what NOTIFY_SOCKET has to be.
	Address string

	conn *net.UnixConn
}

// Message is what a service told at once.
type Message struct {
	Fields map[string]string // by the names of sd_notify(3)
	Text   string
	Time   time.Time
}

// Listen makes a manager with its socket in dir. The caller must Close it.
func Listen(dir string) (*Manager, error) {
	address := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("listen as a service manager: %w", err)
	}
	return &Manager{Address: address, conn: conn}, nil
}

// Next waits for a message.
func (m *Manager) Next(ctx context.Context) (Message, error) {
	defer context.AfterFunc(ctx, func() { _ = m.conn.SetReadDeadline(time.Now()) })()
	buf := make([]byte, 8<<10)
	n, err := m.conn.Read(buf)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return Message{}, fmt.Errorf("wait for a message of the service: %w", err)
	}
	message := Message{Fields: map[string]string{}, Text: string(buf[:n]), Time: time.Now()}
	for line := range strings.SplitSeq(message.Text, "\n") {
		name, value, _ := strings.Cut(line, "=")
		message.Fields[name] = value
	}
	return message, nil
}

// Until waits for a message that has the field, and returns it and those before.
func (m *Manager) Until(ctx context.Context, field string) (before []Message, found Message, err error) {
	for {
		message, err := m.Next(ctx)
		if err != nil {
			return before, Message{}, fmt.Errorf("%s=: %w", field, err)
		}
		if _, has := message.Fields[field]; has {
			return before, message, nil
		}
		before = append(before, message)
	}
}

// Close closes the socket.
func (m *Manager) Close() error { return m.conn.Close() }

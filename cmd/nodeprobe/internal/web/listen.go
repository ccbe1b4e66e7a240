package web

import (
	"context"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Bytes that we have not read yet, and bytes that the client has not read yet, are kernel
// memory that is charged to our cgroup: by default up to 6 and 4 MB for each connection.
// The kernel doubles these.
const (
	receiveBuffer = 16 << 10
	sendBuffer    = 64 << 10 // holds a whole response, so that no handler waits for a client
)

// unreadTimeout is how long, in milliseconds, sent data may stay unacknowledged, even
// after we have closed the connection.
const unreadTimeout = 20_000

// listen binds an address. Its connections have small socket buffers.
func listen(ctx context.Context, address string) (net.Listener, error) {
	listen := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if failed := raw.Control(func(fd uintptr) { err = limitSocket(int(fd)) }); failed != nil {
			return failed
		}
		return err
	}}
	listen.SetMultipathTCP(false) // whose buffers these options do not bound
	return listen.Listen(ctx, "tcp", address)
}

// limitSocket sets the options that connections inherit from a listening socket.
func limitSocket(fd int) error {
	for _, option := range []struct {
		name               string
		level, key, amount int
	}{
		{"SO_RCVBUF", unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer},
		{"SO_SNDBUF", unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer},
		{"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, unreadTimeout},
	} {
		if err := unix.SetsockoptInt(fd, option.level, option.key, option.amount); err != nil {
			return fmt.Errorf("set %s: %w", option.name, err)
		}
	}
	return nil
}

package web

import (
	"context"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// What a client sends and we have not read, and what we have sent and it does not
// read, is the kernel's memory, and counts as ours. Unasked, it would be up to 6 and
// 4 MB for each connection. The kernel allows itself twice these.
const (
	receiveBuffer = 16 << 10
	sendBuffer    = 64 << 10 // takes a whole answer, so that nobody here waits for a client
)

// unreadTimeout is how long, in milliseconds, a client may leave unread what we have
// sent, even where we have hung up since.
const unreadTimeout = 20_000

// listen opens the port, with connections that do not cost much.
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

// limitSocket sets what the connections of a listening socket inherit.
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

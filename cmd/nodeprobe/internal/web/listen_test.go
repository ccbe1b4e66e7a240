package web

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// Kernel memory for a connection is bounded from its first packet on.
func TestListen(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "localhost:0", ":0"} {
		listener, err := listen(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		_, port, _ := net.SplitHostPort(listener.Addr().String())
		client, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		raw.Control(func(fd uintptr) {
			for name, option := range map[string]struct{ level, key, want int }{
				"SO_RCVBUF":        {unix.SOL_SOCKET, unix.SO_RCVBUF, 2 * receiveBuffer},
				"SO_SNDBUF":        {unix.SOL_SOCKET, unix.SO_SNDBUF, 2 * sendBuffer},
				"TCP_USER_TIMEOUT": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, unreadTimeout},
			} {
				if got, err := unix.GetsockoptInt(int(fd), option.level, option.key); err != nil || got != option.want {
					t.Errorf("%s: %s is %d, %v, want %d", address, name, got, err, option.want)
				}
			}
		})
	}
}

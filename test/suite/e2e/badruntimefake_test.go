package e2e

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodeprobe/nodeprobe/probe/cri/critest"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// What stands where a container runtime should; each returns what takes it away.

func nothing(*testing.T, string) (stop func()) { return func() {} }

func regularFile(t *testing.T, path string) (stop func()) {
	must.OK(t, os.WriteFile(path, nil, 0o600))
	return func() {}
}

func listenAt(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l := must.Get(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
	return l
}

// refusing is what a runtime leaves behind that was killed.
func refusing(t *testing.T, path string) (stop func()) {
	l := listenAt(t, path)
	l.SetUnlinkOnClose(false)
	l.Close()
	return func() {}
}

// serving takes connections, and ends those that last when it is stopped.
func serving(t *testing.T, path string, serve func(net.Conn)) (stop func()) {
	t.Helper()
	l := listenAt(t, path)
	var running sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			running.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	return sync.OnceFunc(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
}

// saying says something, and then nothing more.
func saying(text string) func(*testing.T, string) (stop func()) {
	return func(t *testing.T, path string) (stop func()) {
		return serving(t, path, func(c net.Conn) {
			// Either fails when the other end has had enough.
			_, _ = io.WriteString(c, text)
			_, _ = io.Copy(io.Discard, c)
		})
	}
}

func byteByByte(t *testing.T, path string) (stop func()) {
	return serving(t, path, func(c net.Conn) { _, _ = c.Write([]byte{0}) })
}

func oldHTTP(t *testing.T, path string) (stop func()) {
	server := &http.Server{Handler: http.NotFoundHandler()}
	served := make(chan struct{})
	l := listenAt(t, path)
	go func() {
		defer close(served)
		_ = server.Serve(l) // until it is closed
	}()
	return sync.OnceFunc(func() { server.Close(); <-served })
}

// grpcWithout serves gRPC, but no runtime.
func grpcWithout(t *testing.T, path string) (stop func()) {
	server := grpc.NewServer()
	served := make(chan struct{})
	l := listenAt(t, path)
	go func() {
		defer close(served)
		_ = server.Serve(l) // until it is stopped
	}()
	return sync.OnceFunc(func() { server.Stop(); <-served })
}

// failing answers every call with an error.
func failing(code codes.Code) func(*testing.T, string) (stop func()) {
	return func(t *testing.T, path string) (stop func()) {
		return startRuntime(t, path, critest.Replies{Before: func(context.Context, string) error {
			return status.Error(code, "for example")
		}})
	}
}

func goodRuntime(t *testing.T, path, version string) (stop func()) {
	t.Helper()
	replies := critest.Healthy()
	replies.Version.RuntimeVersion = version
	return startRuntime(t, path, replies)
}

func startRuntime(t *testing.T, path string, replies critest.Replies) (stop func()) {
	t.Helper()
	return must.Get(critest.Start(path, replies))(t).Stop
}

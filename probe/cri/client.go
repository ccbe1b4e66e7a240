package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// maxMessage bounds a reply, in bytes: the kubelet's bound.
	maxMessage = 16 << 20
	// maxHeaders bounds the headers of a reply, in bytes. They carry the runtime's
	// error message.
	maxHeaders = 64 << 10
	// bufferSize is that of a connection's read and write buffers, in bytes. A
	// reply is read past the buffer, and all other traffic is small.
	bufferSize = 4 << 10
	// window is how many bytes the runtime may send ahead. It is fixed, because
	// otherwise grpc pings the runtime to find a better one.
	window = 64 << 10
	// maxSocketPath is what fits into a socket's address, with its final NUL.
	maxSocketPath = 107
)

var methods = [NumCalls]string{
	CallStatus:              runtimeapi.RuntimeService_Status_FullMethodName,
	CallVersion:             runtimeapi.RuntimeService_Version_FullMethodName,
	CallUpdateRuntimeConfig: runtimeapi.RuntimeService_UpdateRuntimeConfig_FullMethodName,
	CallImageFsInfo:         runtimeapi.ImageService_ImageFsInfo_FullMethodName,
	CallListImages:          runtimeapi.ImageService_ListImages_FullMethodName,
}

// ofImages reports whether the image service answers a call, which may have a
// socket of its own.
func (c Call) ofImages() bool { return c == CallImageFsInfo || c == CallListImages }

// SocketPath returns the path of an endpoint's socket. An endpoint is "unix:" and
// an absolute path, with or without the "//" of a URL, or that path alone.
func SocketPath(endpoint string) (string, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(endpoint, "unix:"), "//")
	switch {
	case !filepath.IsAbs(path):
		return "", fmt.Errorf("%q is neither unix:// with an absolute path nor such a path alone", endpoint)
	case len(path) > maxSocketPath:
		return "", fmt.Errorf("%q has a path of %d bytes; a socket's has at most %d", endpoint, len(path), maxSocketPath)
	}
	return path, nil
}

// client calls the services behind a socket. It connects for the first call and
// stays connected until close. grpc gets a connection that is already made, and no
// other: it would keep trying to connect in the background.
type client struct {
	path      string
	dial      func(ctx context.Context, path string) (net.Conn, error)
	dialled   func()        // called at each attempt to connect
	connected func()        // called at each new connection, before the first call over it
	dialing   chan struct{} // full while dial runs

	socket net.Conn // nil while closed, as is conn
	conn   *grpc.ClientConn
}

func newClient(path string, dialled, connected func()) *client {
	return &client{path: path, dial: dialSocket, dialled: dialled, connected: connected, dialing: make(chan struct{}, 1)}
}

// call makes one unary call. It returns when ctx ends. A call over a connection
// that an earlier one has left open is repeated over a new one if that is how it
// fails: the runtime may have restarted since.
func (c *client) call(ctx context.Context, call Call, request, reply proto.Message) error {
	kept := c.conn != nil
	err := c.callOnce(ctx, call, request, reply)
	if kept && err != nil && !answered(err) && ctx.Err() == nil {
		c.close()
		err = c.callOnce(ctx, call, request, reply)
	}
	return err
}

func (c *client) callOnce(ctx context.Context, call Call, request, reply proto.Message) error {
	if c.conn == nil {
		if err := c.connect(ctx); err != nil {
			return err
		}
	}
	if err := c.conn.Invoke(ctx, methods[call], request, reply); err != nil {
		return &callError{status.Convert(err)}
	}
	return nil
}

// connect connects. Nothing may wake the process between two calls: no ping, no
// idle timer, no resolver.
func (c *client) connect(ctx context.Context) error {
	socket, err := c.dialOnce(ctx)
	if err != nil {
		return err
	}
	unused := make(chan net.Conn, 1)
	unused <- socket
	conn, err := grpc.NewClient("passthrough:///runtime", // a path need not make a URL
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case socket := <-unused:
				return socket, nil
			default:
				return nil, errors.New("connection is lost")
			}
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		grpc.WithStaticStreamWindowSize(window),
		grpc.WithStaticConnWindowSize(window),
		grpc.WithReadBufferSize(bufferSize),
		grpc.WithWriteBufferSize(bufferSize),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	)
	if err != nil {
		socket.Close()
		return err
	}
	c.socket, c.conn = socket, conn
	c.connected()
	return nil
}

// dialOnce dials, and returns when ctx ends. The kernel looks up the socket on
// whatever disks are on the way, and where one hangs, connect(2) heeds no deadline.
// Then there is no other attempt meanwhile: one goroutine may be stuck there, not
// one for each Sample.
func (c *client) dialOnce(ctx context.Context) (net.Conn, error) {
	select {
	case c.dialing <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	c.dialled()
	type attempt struct {
		socket net.Conn
		err    error
	}
	dialled := make(chan attempt)
	go func() {
		socket, err := c.dial(ctx, c.path)
		<-c.dialing
		select {
		case dialled <- attempt{socket, err}:
		case <-ctx.Done():
			if err == nil {
				socket.Close() // nobody waits for it any more
			}
		}
	}()
	select {
	case a := <-dialled:
		return a.socket, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (c *client) close() {
	if c.conn != nil {
		c.conn.Close()   // fails only if closed before
		c.socket.Close() // which grpc may not have taken yet
		c.socket, c.conn = nil, nil
	}
}

// dialSocket connects to a socket. The error does not name the path: the endpoint,
// which the caller adds, does.
func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		return conn, nil
	}
	if info, statErr := os.Stat(path); statErr == nil && info.Mode().Type() != os.ModeSocket {
		return nil, errors.New("it is not a socket")
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return nil, op.Err
	}
	return nil, err
}

// callError is an error that the runtime returned, or grpc in its place.
type callError struct{ status *status.Status }

func (e *callError) Error() string {
	text := e.status.Code().String()
	if message := e.status.Message(); message != "" {
		text += ": " + message
	}
	if e.status.Code() == codes.Unimplemented && strings.Contains(e.status.Message(), "unknown service") {
		// containerd's CRI can be turned off, and some packages do so; and old
		// runtimes speak v1alpha2.
		text += " (the runtime does not offer CRI v1)"
	}
	return text
}

// answered reports whether a call that failed reached a runtime: all but
// Unavailable, by which grpc reports that there is no connection. A runtime that
// returns it itself is treated the same.
func answered(err error) bool {
	failed, ok := errors.AsType[*callError](err)
	return ok && failed.status.Code() != codes.Unavailable
}

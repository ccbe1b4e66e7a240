package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// methods are the calls as HTTP/2 paths.
var methods = [NumCalls]string{
	CallStatus:              "/runtime.v1.RuntimeService/Status",
	CallVersion:             "/runtime.v1.RuntimeService/Version",
	CallUpdateRuntimeConfig: "/runtime.v1.RuntimeService/UpdateRuntimeConfig",
	CallImageFsInfo:         "/runtime.v1.ImageService/ImageFsInfo",
	CallListImages:          "/runtime.v1.ImageService/ListImages",
}

// ofImages says whether the image service answers a call, which may have a socket
// of its own.
func (c Call) ofImages() bool { return c == CallImageFsInfo || c == CallListImages }

// maxSocketPath is what fits into the address of a socket, with its final NUL.
const maxSocketPath = 107

// SocketPath returns where an endpoint's socket is: it is "unix:" and an absolute
// path, with or without the "//" of a URL, or that path alone.
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

// client makes calls, over a connection that it makes for the first of them and
// keeps until close.
type client struct {
	path    string
	conn    *conn  // nil if there is none
	dialled func() // called at each attempt to connect
	dial    func(context.Context, string) (*conn, error)
	hung    chan struct{} // closed when the attempt ends that was given up last; nil if there is none
}

func (c *client) call(ctx context.Context, call Call, request []byte) ([]byte, error) {
	if c.conn == nil {
		conn, err := c.connect(ctx)
		if err != nil {
			return nil, err
		}
		c.conn = conn
	}
	return c.conn.call(ctx, methods[call], request)
}

// connect returns when ctx ends. The kernel looks for the socket on what disks there
// are on the way, and where one hangs, it heeds no deadline: then there is no other
// attempt meanwhile.
func (c *client) connect(ctx context.Context) (*conn, error) {
	if c.hung != nil {
		select {
		case <-c.hung:
			c.hung = nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	c.dialled()
	type attempt struct {
		conn *conn
		err  error
	}
	answer := make(chan attempt, 1)
	go func() {
		conn, err := c.dial(ctx, c.path)
		if err != nil {
			err = dialError(ctx, c.path, err)
		}
		answer <- attempt{conn, err}
	}()
	select {
	case a := <-answer:
		return a.conn, a.err
	case <-ctx.Done():
	}
	hung := make(chan struct{})
	c.hung = hung
	go func() {
		if a := <-answer; a.err == nil {
			a.conn.close() // nobody wants it any more
		}
		close(hung)
	}()
	return nil, context.Cause(ctx)
}

func (c *client) close() {
	if c.conn != nil {
		c.conn.close()
		c.conn = nil
	}
}

// dialError says what is in the way of connecting, without the path, which the
// endpoint tells already.
func dialError(ctx context.Context, path string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if info, statErr := os.Stat(path); statErr == nil && info.Mode().Type() != os.ModeSocket {
		return errors.New("it is not a socket")
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

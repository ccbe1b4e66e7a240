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
	CallStatus:      "/runtime.v1.RuntimeService/Status",
	CallVersion:     "/runtime.v1.RuntimeService/Version",
	CallImageFsInfo: "/runtime.v1.ImageService/ImageFsInfo",
	CallListImages:  "/runtime.v1.ImageService/ListImages",
}

// maxSocketPath is what fits into the address of a socket, with its final NUL.
const maxSocketPath = 107

// socketPath returns where an endpoint's socket is.
func socketPath(endpoint string) (string, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	switch {
	case !filepath.IsAbs(path):
		return "", fmt.Errorf("%q is neither unix:// with an absolute path nor such a path alone", endpoint)
	case len(path) > maxSocketPath:
		return "", fmt.Errorf("%q has a path of %d bytes; a socket's has at most %d", endpoint, len(path), maxSocketPath)
	}
	return path, nil
}

// client keeps one connection to the runtime, and makes it anew when it is lost.
type client struct {
	path    string
	conn    *conn  // nil if there is none
	hung    bool   // it was closed because no answer came
	dialled func() // called at each attempt to connect
}

// call makes a call. A connection that the runtime closed since the last call
// costs nothing but a new one. Renewed says that there is a new one because of
// something other than an answer that did not come: the runtime may be another
// one than at the last call.
func (c *client) call(ctx context.Context, call Call) (message []byte, renewed bool, err error) {
	if c.conn != nil && !c.conn.closing {
		message, err = c.try(ctx, call)
		if !errors.Is(err, errGone) {
			return message, false, err
		}
	}
	c.close()
	renewed, c.hung = !c.hung, false
	c.dialled()
	if c.conn, err = dial(ctx, c.path); err != nil {
		return nil, renewed, dialError(ctx, c.path, err)
	}
	message, err = c.try(ctx, call)
	return message, renewed, err
}

// try makes a call over the connection that there is, and drops it if it cannot
// be used again.
func (c *client) try(ctx context.Context, call Call) ([]byte, error) {
	message, err := c.conn.call(ctx, methods[call])
	if err != nil && !answered(err) {
		c.close()
		c.hung = ctx.Err() != nil
	}
	return message, err
}

// answered says whether an error is the runtime's answer.
func answered(err error) bool {
	_, ok := errors.AsType[*statusError](err)
	return ok
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

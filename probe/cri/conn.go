package cri

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// maxMessage bounds an answer: the kubelet's bound.
	maxMessage = 16 << 20
	// maxHeaders bounds the headers of an answer. They carry the runtime's error
	// message.
	maxHeaders = 64 << 10
	// maxFrame bounds a frame: HTTP/2's value for who does not ask for another.
	maxFrame = 16 << 10
	// window is how much the runtime may send ahead over a connection, and
	// answerWindow how much of one answer: all that we take, so that we need not
	// hand out more in the course of a call.
	window       = 1 << 30
	answerWindow = maxMessage + 64<<10
)

var errClosed = errors.New("connection is closed without an answer")

// conn is one HTTP/2 connection, for one gRPC call at a time. It needs no
// goroutine, and so must not stay open without a call: nobody would read that
// the runtime asks for the end of it, and a runtime may wait for that before it
// stops.
type conn struct {
	net     net.Conn
	framer  *http2.Framer // reads from net, writes to out
	out     bytes.Buffer
	headers bytes.Buffer // encoded, of one request
	encoder *hpack.Encoder
	stream  uint32 // of the latest call
}

// dial connects to a socket.
func dial(ctx context.Context, path string) (*conn, error) {
	nc, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	c := &conn{net: nc}
	c.framer = http2.NewFramer(&c.out, bufio.NewReader(nc))
	c.framer.SetReuseFrames()
	c.framer.SetMaxReadFrameSize(maxFrame)
	c.framer.MaxHeaderListSize = maxHeaders
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.encoder = hpack.NewEncoder(&c.headers)
	c.encoder.SetMaxDynamicTableSize(0) // so that it does not matter what the runtime can hold

	// All of it goes out with the first call.
	c.out.WriteString(http2.ClientPreface)
	err = errors.Join(
		c.framer.WriteSettings(
			http2.Setting{ID: http2.SettingEnablePush, Val: 0},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: answerWindow},
			http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHeaders},
		),
		c.framer.WriteWindowUpdate(0, window),
	)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

// call makes one gRPC call with a small request, and returns the message that
// answers it. It returns when ctx ends. After an error other than a *statusError
// there must be no further call.
func (c *conn) call(ctx context.Context, method string, request []byte) ([]byte, error) {
	// A deadline in the past interrupts reads and writes.
	stop := context.AfterFunc(ctx, func() { _ = c.net.SetDeadline(time.Unix(1, 0)) })
	answer, err := c.roundTrip(method, request)
	if !stop() {
		// The deadline is set, or will be: an answer that came all the same must
		// not lead to another call.
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return answer.message()
}

// roundTrip sends the request and reads up to the end of the answer.
func (c *conn) roundTrip(method string, request []byte) (*answer, error) {
	a := &answer{}
	err := c.request(method, request)
	for err == nil && !a.complete {
		var frame http2.Frame
		if frame, err = c.framer.ReadFrame(); err == nil {
			err = c.handle(frame, a)
		}
	}
	return a, brief(err, a.begun)
}

// brief says what is wrong with a connection, without its two addresses.
func brief(err error, begun bool) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET):
		if begun {
			return errors.New("connection breaks off within the answer")
		}
		return errClosed
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

// request sends a call whose message fits into a frame.
func (c *conn) request(method string, message []byte) error {
	c.stream += 2
	if c.stream == 2 {
		c.stream = 1 // a client's streams are odd
	}
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: method},
		{Name: ":authority", Value: "localhost"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}
	c.headers.Reset()
	for _, f := range fields {
		if err := c.encoder.WriteField(f); err != nil {
			return err
		}
	}
	err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.stream, BlockFragment: c.headers.Bytes(), EndHeaders: true})
	if err != nil {
		return err
	}
	// Not compressed, so many bytes long.
	data := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	if err := c.framer.WriteData(c.stream, true, data); err != nil {
		return err
	}
	return c.flush()
}

func (c *conn) flush() error {
	_, err := c.net.Write(c.out.Bytes())
	c.out.Reset()
	return err
}

// handle does what one frame from the runtime asks for. What belongs to the call
// goes into a.
func (c *conn) handle(frame http2.Frame, a *answer) error {
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		// None of them matters to requests as small as ours.
		if f.IsAck() {
			return nil
		}
		return errors.Join(c.framer.WriteSettingsAck(), c.flush())
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		return errors.Join(c.framer.WritePing(true, f.Data), c.flush())
	case *http2.GoAwayFrame:
		if f.LastStreamID < c.stream {
			return errClosed
		}
	case *http2.DataFrame:
		if f.StreamID == c.stream {
			return a.data(f.Data(), f.StreamEnded())
		}
	case *http2.MetaHeadersFrame:
		if f.StreamID == c.stream {
			return a.headers(f)
		}
	case *http2.RSTStreamFrame:
		if f.StreamID == c.stream {
			return fmt.Errorf("call is reset: %s", f.ErrCode)
		}
	}
	return nil
}

func (c *conn) close() { c.net.Close() }

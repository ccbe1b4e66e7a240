package cri

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/cri/critest"
)

// Between two Samples nothing is sent or received for an hour, the connection stays
// open, and no ping is sent at any time.
func TestIdleConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &pipeListener{conns: make(chan net.Conn)}
		runtime := critest.Serve(l, fullReplies())
		defer runtime.Stop()
		s := newSampler(t, Config{Endpoint: "/run/x.sock"})
		defer s.Close()
		var wire recorder
		s.services[CallStatus].client.dial = func(context.Context, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			l.conns <- theirs
			wire.Conn = ours
			return &wire, nil
		}
		for range 3 {
			for c, read := range questions(s.Sample(t.Context())) {
				if read.Err != nil {
					t.Fatalf("%s: %v", c, read.Err)
				}
			}
			synctest.Wait()
			sent := wire.len()
			time.Sleep(time.Hour)
			if n := wire.len(); n != sent {
				t.Errorf("%d bytes sent while idle", n-sent)
			}
		}
		if n := runtime.Accepted(); n != 1 {
			t.Fatalf("%d connections, want 1", n)
		}
		types := wire.frameTypes(t)
		if types[headers] == 0 || types[ping] != 0 {
			t.Errorf("sent %d HEADERS, %d PING", types[headers], types[ping])
		}
	})
}

// Types of frames.
const headers, ping = 1, 6

// recorder keeps what is sent.
type recorder struct {
	net.Conn

	mu   sync.Mutex
	sent bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	r.sent.Write(b)
	r.mu.Unlock()
	return r.Conn.Write(b)
}

func (r *recorder) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent.Len()
}

// frameTypes counts HTTP/2 frames by type, but for answers to a ping.
func (r *recorder) frameTypes(t *testing.T) map[byte]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	b, ok := bytes.CutPrefix(r.sent.Bytes(), []byte(preface))
	if !ok {
		t.Fatal("no HTTP/2")
	}
	types := map[byte]int{}
	for len(b) >= 9 {
		const ack = 1 // the runtime may ping
		if b[3] != ping || b[4]&ack == 0 {
			types[b[3]]++
		}
		b = b[9+binary.BigEndian.Uint32(b)>>8:]
	}
	return types
}

// pipeListener accepts one end of each pipe.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	if conn, ok := <-l.conns; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.conns) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{} }

package cri

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"iter"
	"net"
	"net/http"
	"os"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeprobe/nodeprobe/probe/cri/critest"
)

func newSampler(t testing.TB, cfg Config) *Sampler {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// questions are the calls that are made without Configure, and how they went.
func questions(s *Snapshot) iter.Seq2[Call, Read] {
	return func(yield func(Call, Read) bool) {
		for c, read := range s.Reads {
			if c := Call(c); c != CallUpdateRuntimeConfig && !yield(c, read) {
				return
			}
		}
	}
}

func TestSampleReadsEverything(t *testing.T) {
	path := socket(t)
	runtime := startRuntime(t, path, fullReplies())
	s := newSampler(t, Config{Endpoint: "unix://" + path})
	var got Snapshot
	for range 3 {
		got = *s.Sample(t.Context())
	}
	for c, read := range questions(&got) {
		if read.Err != nil || read.Time.IsZero() {
			t.Errorf("%s: %+v", c, read)
		}
	}
	if got.LastReady.IsZero() {
		t.Error("the runtime was never ready")
	}
	got.Reads, got.LastReady = [NumCalls]Read{}, time.Time{}
	want := Snapshot{
		Endpoint: "unix://" + path, Status: wantStatus, Version: wantVersion, Images: wantImages,
		ImageFilesystems: wantImageFilesystems, ContainerFilesystems: wantContainerFilesystems,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if n := runtime.Accepted(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	for call, want := range map[string]int{"Status": 3, "Version": 1, "ImageFsInfo": 1, "ListImages": 1} {
		if got := runtime.Calls(call); got != want {
			t.Errorf("%d calls of %s, want %d", got, call, want)
		}
	}
}

// Whatever is at the endpoint, the error names it and what is wrong.
func TestErrors(t *testing.T) {
	say := func(text string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			listen(t, path, func(c net.Conn) {
				c.Write([]byte(text))
				io.Copy(io.Discard, c)
				c.Close()
			})
		}
	}
	reply := func(replies critest.Replies) func(*testing.T, string) {
		return func(t *testing.T, path string) { startRuntime(t, path, replies) }
	}
	for name, test := range map[string]struct {
		start func(*testing.T, string)
		want  string
	}{
		"nothing there": {func(*testing.T, string) {}, "connect: no such file or directory"},
		"plain file": {func(t *testing.T, path string) {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "it is not a socket"},
		"directory": {func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "it is not a socket"},
		"nobody listens": {func(t *testing.T, path string) {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			l.Close()
		}, "connect: connection refused"},
		"never answers": {say(""), "no answer within 200ms"},
		"never reads": {func(t *testing.T, path string) {
			listen(t, path, func(c net.Conn) { t.Cleanup(func() { c.Close() }) })
		}, "no answer within 200ms"},
		"never ends": {reply(critest.Replies{Before: func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		}}), "no answer within 200ms"},
		"closes at once": {func(t *testing.T, path string) {
			listen(t, path, func(c net.Conn) { c.Close() })
		}, "Unavailable: "},
		"breaks off": {func(t *testing.T, path string) {
			listen(t, path, func(c net.Conn) { c.Write([]byte("\x00\x00\x09\x04")); c.Close() })
		}, "Unavailable: "},
		"HTTP/1.1":         {say("HTTP/1.1 400 Bad Request\r\n\r\n"), "looked like an HTTP/1.1 header"},
		"text":             {say("SSH-2.0-OpenSSH_9.2p1 Debian\r\n"), "http2: frame too large"},
		"settings no more": {say("\x00\x00\x00\x04\x00\x00\x00\x00\x00"), "no answer within 200ms"},
		"goes away":        {say("\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), "Unavailable: "},
		"web page": {func(t *testing.T, path string) {
			startWeb(t, path, func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("<html>")) })
		}, `unexpected content-type "text/html; charset=utf-8"`},
		"other service": {
			func(t *testing.T, path string) { startGRPC(t, path) },
			"Unimplemented: unknown service runtime.v1.RuntimeService (the runtime does not offer CRI v1)",
		},
		"not offered":    {reply(refusing(status.Error(codes.Unimplemented, "method Status not implemented"))), "Unimplemented: method Status not implemented"},
		"unknown code":   {reply(refusing(status.Error(99, ""))), "Code(99)"},
		"too long":       {reply(critest.Replies{Status: statusReply(condition(images(maxMessage + 1).Images[0].Id, true, "", ""))}), "ResourceExhausted: grpc: received message larger than max"},
		"not a message":  {startNonsense, "Internal: grpc: failed to unmarshal the received message"},
		"no conditions":  {reply(critest.Replies{}), "RuntimeReady or NetworkReady is missing"},
		"fails and ends": {reply(refusing(status.Error(codes.DeadlineExceeded, "of its own"))), "DeadlineExceeded: of its own"},
	} {
		t.Run(name, func(t *testing.T) {
			path := socket(t)
			test.start(t, path)
			var timeout time.Duration // the default, as no other case needs it
			if strings.Contains(test.want, "no answer") {
				timeout = 200 * time.Millisecond
			}
			s := newSampler(t, Config{Endpoint: path, Timeout: timeout})
			err := s.Sample(t.Context()).Reads[CallStatus].Err
			if prefix := "call Status of " + path + ": "; err == nil || !strings.HasPrefix(err.Error(), prefix) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v; want %s…%s", err, prefix, test.want)
			}
			if read := s.Last().Reads[CallStatus]; !read.Time.IsZero() {
				t.Errorf("Status was read at %v", read.Time)
			}
		})
	}
}

// startWeb serves web pages over HTTP/2.
func startWeb(t *testing.T, path string, page http.HandlerFunc) {
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: page, Protocols: protocols}
	served := make(chan struct{})
	go func() { server.Serve(l); close(served) }()
	t.Cleanup(func() { server.Close(); <-served })
}

// startGRPC serves gRPC, but no runtime.
func startGRPC(t *testing.T, path string, options ...grpc.ServerOption) {
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	served := make(chan struct{})
	go func() { server.Serve(l); close(served) }()
	t.Cleanup(func() { server.Stop(); <-served })
}

// startNonsense serves messages of another type.
func startNonsense(t *testing.T, path string) {
	startGRPC(t, path, grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		// Its field 1 is a string, and that of a StatusResponse a message.
		return stream.SendMsg(&runtimeapi.VersionResponse{Version: "\xf0\x9f\x98\x80"})
	}))
}

// Every error of the runtime arrives as it is, and costs no connection, but for the
// one that also means that there is none.
func TestRuntimeErrors(t *testing.T) {
	const message = "failed: 100 %, %41, %zz, ä\n, 日本"
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		t.Run(code.String(), func(t *testing.T) {
			path := socket(t)
			runtime := startRuntime(t, path, refusing(status.Error(code, message)))
			s := newSampler(t, Config{Endpoint: path})
			s.Sample(t.Context())
			err := s.Sample(t.Context()).Reads[CallStatus].Err
			if want := "call Status of " + path + ": " + code.String() + ": " + message; err == nil || err.Error() != want {
				t.Errorf("%v; want %s", err, want)
			}
			if got, same := runtime.Accepted(), code != codes.Unavailable; same != (got == 1) {
				t.Errorf("%d connections", got)
			}
		})
	}
}

// A hung or broken answer costs only the connection it came over, and no
// attempt leaves anything behind.
func TestFailuresLeaveNothingBehind(t *testing.T) {
	files := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(entries)
	}
	path := socket(t)
	listen(t, path, func(c net.Conn) {
		c.Write([]byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
		c.Close()
	})
	s := newSampler(t, Config{Endpoint: path})
	hung := socket(t)
	listen(t, hung, func(c net.Conn) { io.Copy(io.Discard, c); c.Close() })
	h := newSampler(t, Config{Endpoint: hung, Timeout: time.Millisecond})
	fail := func() {
		if s.Sample(t.Context()).Reads[CallStatus].Err == nil || h.Sample(t.Context()).Reads[CallStatus].Err == nil {
			t.Fatal("it worked")
		}
	}
	fail()
	goroutines, open := goruntime.NumGoroutine(), files()
	for range 100 {
		fail()
	}
	// The listeners' side of a connection may still be about to close.
	if n := goruntime.NumGoroutine(); n > goroutines+10 {
		t.Errorf("%d goroutines, then %d", goroutines, n)
	}
	if n := files(); n > open+10 {
		t.Errorf("%d files, then %d", open, n)
	}
}

// Each Sample makes one attempt to connect, and nothing tries between them.
func TestReconnects(t *testing.T) {
	path := socket(t)
	s := newSampler(t, Config{Endpoint: path})
	var attempts atomic.Int32
	dial := s.services[CallStatus].client.dial
	s.services[CallStatus].client.dial = func(ctx context.Context, path string) (net.Conn, error) {
		attempts.Add(1)
		return dial(ctx, path)
	}
	for n := range int32(5) {
		s.Sample(t.Context())
		if got := attempts.Load(); got != n+1 {
			t.Fatalf("%d attempts in %d samples", got, n+1)
		}
	}
	if s.services[CallStatus].client.conn != nil {
		t.Error("grpc is left to try on")
	}
}

// A restart costs nothing, and while the runtime is gone, what is known stays.
func TestRestart(t *testing.T) {
	path := socket(t)
	first := startRuntime(t, path, fullReplies())
	s := newSampler(t, Config{Endpoint: path})
	s.Sample(t.Context())
	first.Stop()

	snap := s.Sample(t.Context())
	for c, read := range questions(snap) {
		if due := c == CallStatus || c == CallVersion; due != (read.Err != nil) || read.Time.IsZero() {
			t.Errorf("%s: %+v", c, read)
		}
	}
	if diff := cmp.Diff(wantStatus, snap.Status); diff != "" {
		t.Errorf("what is known is lost: %s", diff)
	}

	replies := fullReplies()
	replies.Version.RuntimeName = "cri-o"
	startRuntime(t, path, replies)
	snap = s.Sample(t.Context())
	for c, read := range questions(snap) {
		if read.Err != nil {
			t.Errorf("%s: %v", c, read.Err)
		}
	}
	if snap.Version.RuntimeName != "cri-o" {
		t.Errorf("version is still %+v", snap.Version)
	}
}

// A restart between two Samples is not an error, although the connection is from before
// it, and the end of it may not have been noticed yet. The new process is asked for its
// version and gets the pods' addresses in the Sample that finds it.
func TestRestartInBetween(t *testing.T) {
	path := socket(t)
	s := newSampler(t, Config{Endpoint: path})
	const cidr = "10.244.3.0/24"
	s.Configure(cidr)
	for i := range 20 {
		replies := critest.Healthy()
		replies.Version.RuntimeVersion = strconv.Itoa(i)
		runtime := startRuntime(t, path, replies)
		snap := s.Sample(t.Context())
		for c, read := range snap.Reads {
			if read.Err != nil {
				t.Errorf("%s: %v", Call(c), read.Err)
			}
		}
		if got := runtime.PodCIDRs(); !slices.Equal(got, []string{cidr}) || snap.PodCIDR != cidr || snap.Version.RuntimeVersion != strconv.Itoa(i) {
			t.Errorf("process %d: got addresses %q; Snapshot has %q and version %q", i, got, snap.PodCIDR, snap.Version.RuntimeVersion)
		}
		runtime.Stop()
	}
}

// A path may have characters that mean something in a URL.
func TestOddPath(t *testing.T) {
	path := socket(t) + " %zz?#:@[ä"
	startRuntime(t, path, critest.Healthy())
	s := newSampler(t, Config{Endpoint: "unix://" + path})
	if err := s.Sample(t.Context()).Reads[CallStatus].Err; err != nil {
		t.Error(err)
	}
}

// A runtime that stops completes the call that it is in, and does not wait for the
// next one.
func TestGracefulStop(t *testing.T) {
	path := socket(t)
	stopped := make(chan struct{})
	var runtime *critest.Runtime
	replies := fullReplies()
	replies.Before = func(context.Context, string) error {
		go func() { runtime.GracefulStop(); close(stopped) }()
		return nil
	}
	runtime = startRuntime(t, path, critest.Replies{})
	runtime.Set(replies)
	s := newSampler(t, Config{Endpoint: path})
	call, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.fetch(call, CallStatus); err != nil {
		t.Error(err)
	}
	<-stopped
	if s.Sample(t.Context()).Reads[CallStatus].Err == nil {
		t.Error("a stopped runtime answers")
	}
}

// A list may be as long as the bound, and no longer.
func TestLargestList(t *testing.T) {
	path := socket(t)
	replies := fullReplies()
	replies.Images = images(maxMessage)
	runtime := startRuntime(t, path, replies)
	s := newSampler(t, Config{Endpoint: path, ImageInterval: time.Nanosecond})
	if snap := s.Sample(t.Context()); len(snap.Images) != 1 || snap.Images[0].ID != replies.Images.Images[0].Id {
		t.Errorf("%d images; error %v", len(snap.Images), snap.Reads[CallListImages].Err)
	}
	replies.Images = images(maxMessage + 1)
	runtime.Set(replies)
	if err := s.Sample(t.Context()).Reads[CallListImages].Err; err == nil || !strings.Contains(err.Error(), "larger than max") {
		t.Errorf("one byte more: %v", err)
	}
}

// The end of ctx ends a call, which has not failed for that.
func TestContextEnds(t *testing.T) {
	path := socket(t)
	runtime := startRuntime(t, path, fullReplies())
	s := newSampler(t, Config{Endpoint: path, Timeout: time.Hour})
	before := *s.Sample(t.Context())
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("shutdown")
	runtime.Set(critest.Replies{Before: func(ctx context.Context, _ string) error {
		cancel(reason)
		<-ctx.Done()
		return ctx.Err()
	}})
	if err := s.Run(ctx, func() { t.Error("something has changed") }); !errors.Is(err, reason) {
		t.Errorf("Run returns %v", err)
	}
	after := s.Last()
	before.Silent = after.Silent // which goes on
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error(diff)
	}
	if s.services[CallStatus].client.conn != nil {
		t.Error("Run leaves the connection open")
	}
}

// Whenever ctx ends while a connection is made, the connection is closed in the end.
func TestContextEndsWhileConnecting(t *testing.T) {
	path := socket(t)
	startRuntime(t, path, critest.Healthy())
	for range 100 {
		s := newSampler(t, Config{Endpoint: path})
		ctx, cancel := context.WithCancel(t.Context())
		closed := make(chan struct{})
		s.services[CallStatus].client.dial = func(_ context.Context, path string) (net.Conn, error) {
			defer cancel()
			conn, err := dialSocket(t.Context(), path)
			return &closeRecorder{Conn: conn, closed: sync.OnceFunc(func() { close(closed) })}, err
		}
		s.Sample(ctx)
		s.Close()
		select {
		case <-closed:
		case <-time.After(30 * time.Second):
			t.Fatal("the connection is still open after 30 s")
		}
	}
}

// closeRecorder calls closed when it is closed.
type closeRecorder struct {
	net.Conn
	closed func()
}

func (c *closeRecorder) Close() error {
	c.closed()
	return c.Conn.Close()
}

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

// A socket that lies on a disk that hangs is waited for as long as any answer, by one
// goroutine, and found when the disk answers.
func TestConnectThatHangs(t *testing.T) {
	path := socket(t)
	startRuntime(t, path, critest.Healthy())
	s := newSampler(t, Config{Endpoint: "unix://" + path, Timeout: 50 * time.Millisecond})
	var attempts atomic.Int32
	gate := make(chan struct{})
	s.services[CallStatus].client.dial = func(ctx context.Context, path string) (net.Conn, error) {
		attempts.Add(1)
		<-gate // whatever the context says
		return dialSocket(ctx, path)
	}
	for range 3 {
		got := s.Sample(t.Context())
		if err := got.Reads[CallStatus].Err; !errors.Is(err, noAnswer(50*time.Millisecond)) {
			t.Errorf("error %v", err)
		}
	}
	if n := attempts.Load(); n != 1 {
		t.Errorf("%d attempts to connect, want 1", n)
	}
	close(gate)
	for end := time.Now().Add(30 * time.Second); s.Sample(t.Context()).Reads[CallStatus].Err != nil; {
		if time.Now().After(end) {
			t.Fatalf("no answer within 30 s: %v", s.current.Reads[CallStatus].Err)
		}
	}
}

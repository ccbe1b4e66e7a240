package cri

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeprobe/nodeprobe/probe/cri/critest"
)

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

package cri

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"iter"
	"net"
	"net/http"
	"os"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func newSampler(t testing.TB, cfg Config) *Sampler {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
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
	runtime := startRuntime(t, path, healthy())
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
	connections, calls := runtime.counts()
	if diff := cmp.Diff(map[string]int{"Status": 3, "Version": 1, "ImageFsInfo": 1, "ListImages": 1}, calls); connections != 3 || diff != "" {
		t.Errorf("%d connections; calls: %s", connections, diff)
	}
}

// Whatever is at the endpoint, the error names it and says what is wrong.
func TestErrors(t *testing.T) {
	random := make([]byte, 4096)
	rand.Read(random)
	say := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			c.Write([]byte(text))
			io.Copy(io.Discard, c)
			c.Close()
		}
	}
	status := func(answer http.HandlerFunc) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			startRuntime(t, path, map[Call]http.HandlerFunc{CallStatus: answer})
		}
	}
	serve := func(f func(net.Conn)) func(*testing.T, string) {
		return func(t *testing.T, path string) { listen(t, path, f) }
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
		"never answers":    {serve(func(c net.Conn) { io.Copy(io.Discard, c); c.Close() }), "no answer within 200ms"},
		"never reads":      {serve(func(c net.Conn) { t.Cleanup(func() { c.Close() }) }), "no answer within 200ms"},
		"never ends":       {status(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), "no answer within 200ms"},
		"closes at once":   {serve(func(c net.Conn) { c.Close() }), "connection is closed without an answer"},
		"HTTP/1.1":         {serve(say("HTTP/1.1 400 Bad Request\r\n\r\n")), "looked like an HTTP/1.1 header"},
		"text":             {serve(say("SSH-2.0-OpenSSH_9.2p1 Debian\r\n")), "http2: frame too large"},
		"settings no more": {serve(say("\x00\x00\x00\x04\x00\x00\x00\x00\x00")), "no answer within 200ms"},
		"breaks off":       {serve(func(c net.Conn) { c.Write([]byte("\x00\x00\x09\x04")); c.Close() }), "connection is closed without an answer"},
		"bad settings":     {serve(say("\x00\x00\x01\x04\x00\x00\x00\x00\x00\x00")), "FRAME_SIZE_ERROR"},
		"bad headers":      {serve(say("\x00\x00\x01\x01\x05\x00\x00\x00\x01\xff")), "COMPRESSION_ERROR"},
		"data first":       {serve(say("\x00\x00\x01\x00\x01\x00\x00\x00\x01\x00")), "answer has no headers"},
		"reset":            {serve(say("\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x02")), "call is reset: INTERNAL_ERROR"},
		"refused stream":   {serve(say("\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x07")), "call is reset: REFUSED_STREAM"},
		"goes away":        {serve(say("\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")), "connection is closed without an answer"},
		"HTTP/2 only":      {status(func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }), `server of another kind: HTTP status "404"`},
		"web page":         {status(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("<html>")) }), `server of another kind: content type "text/html; charset=utf-8"`},
		"other version":    {status(nil), "Unimplemented: unknown service /runtime.v1.RuntimeService/Status (the runtime does not offer CRI v1)"},
		"error":            {status(refuse(13, "100 % wrong: ä")), "Internal: 100 % wrong: ä"},
		"unknown code":     {status(refuse(99, "")), "code 99"},
		"error at the end": {status(raw(nil, "14", "not%20yet%zz")), "Unavailable: not%20yet%zz"},
		"no status":        {status(raw([]byte{0, 0, 0, 0, 0}, "", "")), `answer ends with status ""`},
		"no message":       {status(raw(nil, "0", "")), "read message: unexpected EOF"},
		"short message":    {status(raw([]byte{0, 0, 0, 0, 9, 1}, "0", "")), "answer has 1 bytes instead of 9"},
		"two messages":     {status(raw(make([]byte, 10), "0", "")), "answer has 5 bytes instead of 0"},
		"compressed":       {status(raw([]byte{1, 0, 0, 0, 0}, "0", "")), "answer is compressed"},
		"too long":         {status(raw([]byte{0, 1, 0, 0, 1}, "0", "")), "answer exceeds 16777216 bytes"},
		"too many bytes":   {status(raw(make([]byte, prefixLen+maxMessage+1), "0", "")), "answer exceeds 16777216 bytes"},
		"not a message":    {status(tell([]byte{0xff})), "decode answer: unexpected EOF"},
		"no conditions":    {status(tell(nil)), "decode answer: RuntimeReady or NetworkReady is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			path := socket(t)
			test.start(t, path)
			var timeout time.Duration // the default, as no other case needs it
			if strings.Contains(test.want, "no answer") {
				timeout = 200 * time.Millisecond
			}
			s := newSampler(t, Config{Endpoint: path, Timeout: timeout})
			snap := s.Sample(t.Context())
			err := snap.Reads[CallStatus].Err
			if prefix := "call Status of " + path + ": "; err == nil || !strings.HasPrefix(err.Error(), prefix) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v; want %s…%s", err, prefix, test.want)
			}
			for c, read := range questions(snap) {
				if read.Err == nil || !read.Time.IsZero() {
					t.Errorf("%s: %+v", c, read)
				}
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

// A restart costs nothing, and while the runtime is gone, what is known stays.
func TestRestart(t *testing.T) {
	path := socket(t)
	first := startRuntime(t, path, healthy())
	s := newSampler(t, Config{Endpoint: path})
	s.Sample(t.Context())
	first.stop()

	snap := s.Sample(t.Context())
	for c, read := range questions(snap) {
		if due := c == CallStatus || c == CallVersion; due != (read.Err != nil) || read.Time.IsZero() {
			t.Errorf("%s: %+v", c, read)
		}
	}
	if diff := cmp.Diff(wantStatus, snap.Status); diff != "" {
		t.Errorf("what is known is lost: %s", diff)
	}

	answers := healthy()
	answers[CallVersion] = tell(join(str(2, "cri-o"), str(3, "1.34.0")))
	startRuntime(t, path, answers)
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

// A runtime that is about to stop answers what it has begun with.
func TestGoAway(t *testing.T) {
	path := socket(t)
	answers := healthy()
	ok := answers[CallStatus]
	answers[CallStatus] = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close") // net/http's way to send GOAWAY
		ok(w, r)
	}
	startRuntime(t, path, answers)
	s := newSampler(t, Config{Endpoint: path})
	snap := s.Sample(t.Context())
	if err := snap.Reads[CallStatus].Err; err != nil {
		t.Error(err)
	}
}

// Answers may be as large as we allow, all of them over one connection.
func TestLargestAnswers(t *testing.T) {
	path := socket(t)
	padding := str(1000, strings.Repeat("x", maxMessage-len(imagesMessage)-1024))
	startRuntime(t, path, map[Call]http.HandlerFunc{
		CallStatus: tell(join(statusMessage, padding)), CallVersion: tell(join(versionMessage, padding)),
		CallImageFsInfo: tell(join(filesystemsMessage, padding)), CallListImages: tell(join(imagesMessage, padding)),
	})
	s := newSampler(t, Config{Endpoint: path})
	for c, read := range questions(s.Sample(t.Context())) {
		if read.Err != nil {
			t.Errorf("%s: %v", c, read.Err)
		}
	}
}

// The end of ctx ends a call, which has not failed for that.
func TestContextEnds(t *testing.T) {
	path := socket(t)
	answers := healthy()
	runtime := startRuntime(t, path, answers)
	s := newSampler(t, Config{Endpoint: path, Timeout: time.Hour})
	before := *s.Sample(t.Context())
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("shutdown")
	runtime.mu.Lock()
	runtime.answers = map[Call]http.HandlerFunc{CallStatus: func(_ http.ResponseWriter, r *http.Request) {
		cancel(reason)
		<-r.Context().Done()
	}}
	runtime.mu.Unlock()
	if err := s.Run(ctx, func() { t.Error("something has changed") }); !errors.Is(err, reason) {
		t.Errorf("Run returns %v", err)
	}
	after := s.Last()
	before.Silent = after.Silent // which goes on
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error(diff)
	}
}

// An answer that comes when ctx has ended does not count, as the connection is
// not to be used again.
func TestContextEndsWithTheAnswer(t *testing.T) {
	path := socket(t)
	startRuntime(t, path, healthy())
	reason := errors.New("shutdown")
	for range 100 {
		c, err := dial(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(reason)
		if _, err := c.call(ctx, methods[CallStatus], nil); !errors.Is(err, reason) {
			t.Errorf("call returns %v", err)
		}
		c.close()
	}
}

// A server may ask for more than an answer to a call.
func TestPing(t *testing.T) {
	path := socket(t)
	acked := make(chan bool, 1)
	listen(t, path, func(c net.Conn) {
		defer c.Close()
		c.Write([]byte("\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678"))
		var got []byte
		for b := make([]byte, 4096); !bytes.Contains(got, []byte("\x06\x01\x00\x00\x00\x0012345678")); {
			n, err := c.Read(b)
			if err != nil {
				acked <- false
				return
			}
			got = append(got, b[:n]...)
		}
		acked <- true
	})
	s := newSampler(t, Config{Endpoint: path})
	s.Sample(t.Context())
	if !<-acked {
		t.Error("the ping is not answered")
	}
}

// A socket that lies on a disk that hangs is waited for as long as any answer, by one
// goroutine, and found when the disk answers.
func TestConnectThatHangs(t *testing.T) {
	path := socket(t)
	startRuntime(t, path, healthy())
	s := newSampler(t, Config{Endpoint: "unix://" + path, Timeout: 50 * time.Millisecond})
	var attempts atomic.Int32
	gate := make(chan struct{})
	s.services[CallStatus].client.dial = func(ctx context.Context, path string) (*conn, error) {
		attempts.Add(1)
		<-gate // whatever the context says
		return dial(ctx, path)
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

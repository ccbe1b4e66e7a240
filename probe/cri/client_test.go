package cri

import (
	"context"
	"errors"
	"iter"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

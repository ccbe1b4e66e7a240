package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeprobe/nodeprobe/probe/cri/critest"
)

// script is a runtime without a socket: it replies by what the table says, and
// notes when which call was made.
type script struct {
	start    time.Time
	asked    []string
	podCIDRs []string // of UpdateRuntimeConfig, with the time

	mu      sync.Mutex
	answers map[Call]answer
}

// answer is how a call ends; nil is an empty reply.
type answer func(context.Context) (proto.Message, error)

func (x *script) set(c Call, a answer) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.answers[c] = a
}

func (x *script) call(ctx context.Context, c Call, request, reply proto.Message) error {
	at := time.Since(x.start).Round(time.Millisecond)
	if update, ok := request.(*runtimeapi.UpdateRuntimeConfigRequest); ok {
		x.podCIDRs = append(x.podCIDRs, fmt.Sprintf("%s %s", at, update.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()))
	} else {
		x.asked = append(x.asked, fmt.Sprintf("%s %s", at, c))
	}
	x.mu.Lock()
	answer := x.answers[c]
	x.mu.Unlock()
	message, err := answer(ctx)
	if message != nil {
		proto.Merge(reply, message)
	}
	return err
}

func says(message proto.Message) answer {
	return func(context.Context) (proto.Message, error) { return message, nil }
}

func fails(err error) answer {
	return func(context.Context) (proto.Message, error) { return nil, err }
}

func hangs(ctx context.Context) (proto.Message, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func newScript(t *testing.T, cfg Config) (*Sampler, *script) {
	t.Helper()
	full := fullReplies()
	x := &script{start: time.Now(), answers: map[Call]answer{
		CallStatus: says(readyReply()), CallVersion: says(full.Version),
		CallImageFsInfo: says(full.Filesystems), CallListImages: says(full.Images),
		CallUpdateRuntimeConfig: says(nil),
	}}
	cfg.Endpoint = "unix:///run/x.sock"
	s := newSampler(t, cfg)
	s.call = x.call
	return s, x
}

// replyError is the error of a call that the runtime refuses.
func replyError(code codes.Code, message string) error {
	return &callError{status.New(code, message)}
}

var errLost = errors.New("connect: connection refused")

// When each call is made, by what becomes of the others.
func TestSchedule(t *testing.T) {
	answer := func(c Call, a answer) func(*script) {
		return func(x *script) { x.set(c, a) }
	}
	for name, test := range map[string]struct {
		change func(*script)
		run    time.Duration
		want   string
	}{
		"healthy": {
			func(*script) {}, 65 * time.Second,
			`0s Status, 0s Version, 0s ImageFsInfo, 0s ListImages, 10s Status, 20s Status, 30s Status, 40s Status, 50s Status,
			1m0s Status, 1m0s Version, 1m0s ImageFsInfo, 1m0s ListImages`,
		},
		"not there": {
			answer(CallStatus, fails(errLost)), 250 * time.Millisecond,
			`0s Status, 100ms Status, 200ms Status`,
		},
		"comes": {
			func(x *script) {
				x.set(CallStatus, fails(errLost))
				time.AfterFunc(150*time.Millisecond, func() { x.set(CallStatus, says(readyReply())) })
			}, 12 * time.Second,
			`0s Status, 100ms Status, 200ms Status, 200ms Version, 200ms ImageFsInfo, 200ms ListImages, 10.2s Status`,
		},
		"hung": {
			answer(CallStatus, hangs), 30 * time.Second,
			`0s Status, 10.1s Status, 20.2s Status`,
		},
		"refuses": {
			answer(CallStatus, fails(replyError(codes.Unknown, ""))), 250 * time.Millisecond,
			`0s Status, 0s Version, 0s ImageFsInfo, 0s ListImages, 100ms Status, 200ms Status`,
		},
		"version hangs": {
			answer(CallVersion, hangs), 45 * time.Second,
			`0s Status, 0s Version, 20s Status, 20s ImageFsInfo, 20s ListImages, 30s Status, 30s Version`,
		},
		"images hang": {
			answer(CallListImages, hangs), 55 * time.Second,
			`0s Status, 0s Version, 0s ImageFsInfo, 0s ListImages, 20s Status, 30s Status, 30s ListImages, 50s Status`,
		},
		"filesystems hang": {
			answer(CallImageFsInfo, hangs), 45 * time.Second,
			`0s Status, 0s Version, 0s ImageFsInfo, 20s Status, 20s ListImages, 30s Status, 30s ImageFsInfo`,
		},
		"filesystems are refused": {
			answer(CallImageFsInfo, fails(replyError(codes.Unimplemented, ""))), 35 * time.Second,
			`0s Status, 0s Version, 0s ImageFsInfo, 0s ListImages, 10s Status, 20s Status, 30s Status, 30s ImageFsInfo`,
		},
		"lost in between": {
			answer(CallListImages, fails(errLost)), 15 * time.Second,
			`0s Status, 0s Version, 0s ImageFsInfo, 0s ListImages, 10s Status, 10s Version, 10s ListImages`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, x := newScript(t, Config{})
				test.change(x)
				ctx, cancel := context.WithTimeout(t.Context(), test.run)
				defer cancel()
				if err := s.Run(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Run returns %v", err)
				}
				want := strings.Split(strings.Join(strings.Fields(test.want), " "), ", ")
				if diff := cmp.Diff(want, x.asked); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// What ten minutes cost a healthy runtime.
func TestScheduleCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, x := newScript(t, Config{})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Second)
		defer cancel()
		s.Run(ctx, nil)
		counts := map[string]int{}
		for _, asked := range x.asked {
			_, call, _ := strings.Cut(asked, " ")
			counts[call]++
		}
		want := map[string]int{"Status": 61, "Version": 11, "ImageFsInfo": 11, "ListImages": 11}
		if diff := cmp.Diff(want, counts); diff != "" {
			t.Error(diff)
		}
	})
}

// A runtime that does not become ready is asked often for two minutes, after the
// start and after it was ready last, and then as rarely as any.
func TestEagerness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, x := newScript(t, Config{})
		x.set(CallStatus, says(fullReplies().Status)) // its network is not ready
		time.AfterFunc(5*time.Minute-time.Second, func() { x.set(CallStatus, says(readyReply())) })
		time.AfterFunc(6*time.Minute-time.Second, func() { x.set(CallStatus, says(fullReplies().Status)) })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute-time.Second)
		defer cancel()
		s.Run(ctx, nil)
		counts := make([]int, 10)
		for _, asked := range x.asked {
			at, call, _ := strings.Cut(asked, " ")
			d, err := time.ParseDuration(at)
			if err != nil {
				t.Fatal(err)
			}
			if call == "Status" {
				counts[int(d.Minutes())]++
			}
		}
		if want := []int{600, 600, 6, 6, 6, 6, 600, 501, 6, 6}; !cmp.Equal(want, counts) {
			t.Errorf("asked in each minute: %d, want %d", counts, want)
		}
	})
}

// What was told stays when a call fails, with its age and the error; each part
// for itself.
func TestFailureKeepsWhatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for c := range questions(&Snapshot{}) {
			s, x := newScript(t, Config{ImageInterval: time.Second})
			before := *s.Sample(t.Context())
			time.Sleep(6 * time.Minute)
			x.answers[c] = fails(replyError(codes.Internal, "nonsense"))
			after := *s.Sample(t.Context())
			for other, read := range questions(&after) {
				was := before.Reads[other]
				if failed := other == c; failed != (read.Err != nil) || failed != read.Time.Equal(was.Time) {
					t.Errorf("%s fails; %s: %+v", c, other, read)
				}
			}
			before.Reads, after.Reads = [NumCalls]Read{}, [NumCalls]Read{}
			if c == CallStatus != before.LastReady.Equal(after.LastReady) {
				t.Errorf("%s fails; last ready %s", c, after.LastReady)
			}
			before.LastReady, before.Silent = after.LastReady, after.Silent
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("%s fails: %s", c, diff)
			}
		}
	})
}

// Changed is called when something is news, and only then.
func TestChanged(t *testing.T) {
	notReady := statusReply(condition("RuntimeReady", false, "Stopping", ""), condition("NetworkReady", true, "", ""))
	elsewhere := fullReplies().Filesystems
	elsewhere.ImageFilesystems[0].UsedBytes.Value = 1 // which is no change
	synctest.Test(t, func(t *testing.T) {
		s, x := newScript(t, Config{})
		var changes []string
		note := func() { changes = append(changes, time.Since(x.start).String()) }
		after := func(d time.Duration, c Call, a answer) {
			time.AfterFunc(d, func() { x.set(c, a) })
		}
		after(95*time.Second, CallStatus, says(notReady))
		after(115*time.Second+50*time.Millisecond, CallStatus, fails(replyError(codes.Unknown, "a")))
		after(116*time.Second+50*time.Millisecond, CallStatus, fails(replyError(codes.Unknown, "b")))
		after(125*time.Second+50*time.Millisecond, CallStatus, says(notReady))
		after(155*time.Second, CallImageFsInfo, says(elsewhere))
		after(215*time.Second, CallListImages, says(nil))
		after(275*time.Second, CallImageFsInfo, says(nil))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		s.Run(ctx, note)
		// It is asked ten times a second while it has been unready for less than two
		// minutes.
		want := []string{"0s", "1m40s", "1m55.1s", "1m56.1s", "2m5.1s", "4m0s", "5m0s"}
		if diff := cmp.Diff(want, changes); diff != "" {
			t.Error(diff)
		}
	})
}

func TestLogsOncePerChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s, x := newScript(t, Config{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			},
		}))})
		sample := func(n int, status answer) {
			x.answers[CallStatus] = status
			for range n {
				s.Sample(t.Context())
				time.Sleep(10 * time.Second)
			}
		}
		sample(3, says(readyReply()))
		sample(3, fails(errLost))
		sample(3, fails(errors.New("another"))) // too soon
		sample(10, fails(errLost))
		sample(3, hangs)
		sample(2, says(readyReply()))
		want := `level=WARN msg="container runtime does not answer" err="call Status of unix:///run/x.sock: connect: connection refused"
level=WARN msg="container runtime does not answer" err="call Status of unix:///run/x.sock: no answer within 10s"
level=INFO msg="container runtime answers again" call=Status endpoint=unix:///run/x.sock
`
		if diff := cmp.Diff(want, log.String()); diff != "" {
			t.Error(diff)
		}
	})
}

// A node need not have a runtime.
func TestNoRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSampler(t, Config{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := s.Run(ctx, func() { t.Error("something has changed") }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Run returns %v", err)
		}
		last := s.Last()
		if diff := cmp.Diff(Snapshot{}, last); diff != "" {
			t.Error(diff)
		}
		if err := last.Unready(); err != nil {
			t.Errorf("the node is not ready for want of a runtime: %v", err)
		}
	})
}

// A kubelet reads endpoints as URLs.
func TestSocketPath(t *testing.T) {
	for _, endpoint := range []string{"/run/x.sock", "unix:/run/x.sock", "unix:///run/x.sock"} {
		if path, err := SocketPath(endpoint); path != "/run/x.sock" || err != nil {
			t.Errorf("%s: %q, %v", endpoint, path, err)
		}
	}
}

func TestBadConfig(t *testing.T) {
	for _, test := range []struct {
		cfg  Config
		want string
	}{
		{Config{Endpoint: "run/x.sock"}, `Endpoint: "run/x.sock" is neither unix:// with an absolute path nor such a path alone`},
		{Config{Endpoint: "tcp://127.0.0.1:1"}, `Endpoint: "tcp://127.0.0.1:1" is neither`},
		{Config{Endpoint: "unix://"}, `Endpoint: "unix://" is neither`},
		{Config{Endpoint: "unix:///" + strings.Repeat("x", 107)}, "has a path of 108 bytes; a socket's has at most 107"},
		{Config{Interval: -1}, "Interval: -1ns is negative"},
		{Config{ImageInterval: -1}, "ImageInterval: -1ns is negative"},
		{Config{Timeout: -1}, "Timeout: -1ns is negative"},
	} {
		if _, err := New(test.cfg); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v; want %s", test.cfg, err, test.want)
		}
	}
}

// A runtime that refused everything is asked for everything as soon as it works.
func TestRefusedCallsAreMadeUpFor(t *testing.T) {
	path := socket(t)
	runtime := startRuntime(t, path, refusing(status.Error(codes.Unimplemented, "not yet")))
	s := newSampler(t, Config{Endpoint: "unix://" + path})
	calls := []Call{CallStatus, CallVersion, CallImageFsInfo, CallListImages}
	for _, c := range calls {
		if s.Sample(t.Context()).Reads[c].Err == nil {
			t.Fatalf("%s is answered", c)
		}
	}
	runtime.Set(critest.Healthy())
	snap := s.Sample(t.Context())
	for _, c := range calls {
		if read := snap.Reads[c]; read.Err != nil || read.Time.IsZero() {
			t.Errorf("%s: %+v", c, read)
		}
	}
}

package cri

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// A process that was stopped for a while has not heard that the runtime is silent:
// it asks before it judges. What time passed meanwhile shows in every clock there
// is, in a call's deadline too.
func TestStoppedProcess(t *testing.T) {
	const stopped = 10 * time.Minute
	for name, stop := range map[string]func(*testing.T, *Sampler, *script){
		"between two calls": func(*testing.T, *Sampler, *script) { time.Sleep(stopped) },
		"during a call": func(t *testing.T, s *Sampler, x *script) {
			time.Sleep(defaultInterval)
			x.set(CallStatus, func(ctx context.Context) (proto.Message, error) {
				time.Sleep(stopped)
				return nil, context.Cause(ctx) // although the answer is there
			})
			s.Sample(t.Context())
			x.set(CallStatus, says(readyReply()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, x := newScript(t, Config{})
				s.Sample(t.Context())
				for range 5 {
					stop(t, s, x)
					last := s.Last()
					if err := last.Unready(); err != nil {
						t.Errorf("before it could ask: %v", err)
					}
					if err := s.Sample(t.Context()).Unready(); err != nil {
						t.Errorf("after it has asked: %v", err)
					}
				}
			})
		})
	}
}

// A runtime that is asked and does not say that it is ready is down after so long,
// whether it does not answer, cannot be reached, or the call never returns.
func TestSilentRuntime(t *testing.T) {
	for name, answer := range map[string]answer{
		"hangs":         hangs,
		"refuses":       fails(replyError(codes.Unknown, "")),
		"cannot be met": fails(errLost),
		"stuck": func(ctx context.Context) (proto.Message, error) {
			time.Sleep(2 * downAfter)
			return nil, context.Cause(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, x := newScript(t, Config{})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { defer close(ended); s.Run(ctx, nil) }()
				synctest.Wait()
				x.set(CallStatus, answer)
				var down time.Duration
				for range 2 * downAfter / time.Second {
					time.Sleep(time.Second)
					if last := s.Last(); last.Unready() != nil {
						down = time.Since(x.start)
						break
					}
				}
				if down != downAfter {
					t.Errorf("down after %v, want %v", down, downAfter)
				}
				x.set(CallStatus, says(readyReply()))
				time.Sleep(2 * downAfter)
				if last := s.Last(); last.Unready() != nil {
					t.Errorf("after it is back: %v", last.Unready())
				}
				cancel()
				<-ended
			})
		})
	}
}

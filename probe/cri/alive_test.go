package cri

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// Run is late where a step never ends, and only there: not while it waits for the next
// Sample, whatever the runtime does, and not on a node without one.
func TestAlive(t *testing.T) {
	never := make(chan struct{})
	slow := func(context.Context) (proto.Message, error) {
		time.Sleep(defaultTimeout - 1)
		return nil, replyError(codes.Unknown, "")
	}
	stuck := func(context.Context) (proto.Message, error) {
		<-never
		return nil, errLost
	}
	for name, test := range map[string]struct {
		answer    answer // to every call; nil: as of a healthy runtime
		noRuntime bool
		changed   func()
		late      bool
	}{
		"all is well":              {},
		"cannot be reached":        {answer: fails(errLost)},
		"every call is given up":   {answer: hangs},
		"every call takes long":    {answer: slow},
		"no runtime":               {noRuntime: true},
		"a call never returns":     {answer: stuck, late: true},
		"the caller never returns": {changed: func() { <-never }, late: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				never = make(chan struct{})
				var mu sync.Mutex
				var due time.Time // zero while nothing is
				overdue := func() bool { return !due.IsZero() && time.Now().After(due) }
				s, x := newScript(t, Config{Alive: func(within time.Duration) {
					mu.Lock()
					defer mu.Unlock()
					if overdue() {
						t.Errorf("%v late", time.Since(due))
					}
					if due = (time.Time{}); within > 0 {
						due = time.Now().Add(within)
					}
				}})
				s.Configure("10.0.0.0/24")
				for c := range Call(NumCalls) {
					if test.answer != nil {
						x.set(c, test.answer)
					}
				}
				if test.noRuntime {
					s.cfg.Endpoint = ""
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { defer close(ended); s.Run(ctx, test.changed) }()
				time.Sleep(time.Hour)
				mu.Lock()
				if overdue() != test.late {
					t.Errorf("after an hour: late is %t, want %t", overdue(), test.late)
				}
				due = time.Time{}
				mu.Unlock()
				cancel()
				close(never)
				<-ended
			})
		})
	}
}

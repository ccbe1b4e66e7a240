package status

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// stream is one watch of a fakeAPI. Its fields are guarded by the server's mu.
type stream struct {
	api    *fakeAPI
	events chan watch.Event
	from   string
	closed bool
	mute   bool // the connection died without a word
}

// Watch begins as the real one does: with what has happened since the version,
// or with the Node as it is.
func (a *fakeAPI) Watch(ctx context.Context, name, version string, limit time.Duration) (watch.Interface, error) {
	s := &stream{api: a, events: make(chan watch.Event, 1000), from: version}
	err := a.do(ctx, "WATCH", version, func() error {
		from, err := strconv.Atoi(version)
		switch {
		case err != nil:
			return apierrors.NewBadRequest("invalid resource version " + version)
		case from > a.version:
			return apierrors.NewTimeoutError("Too large resource version", 1)
		case from == 0 && a.node != nil:
			s.events <- watch.Event{Type: watch.Added, Object: a.node.DeepCopy()}
		case from > 0 && from < a.compacted:
			status := metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old resource version"}
			s.events <- watch.Event{Type: watch.Error, Object: &status}
		default:
			for _, e := range a.history {
				if v, _ := strconv.Atoi(e.Object.(*v1.Node).ResourceVersion); v > from && from > 0 {
					s.events <- e
				}
			}
		}
		a.streams = append(a.streams, s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, s.Stop)
	timer := time.AfterFunc(limit, func() {
		a.edit(func() {
			if !s.mute {
				s.end()
			}
		})
	})
	context.AfterFunc(ctx, func() { timer.Stop() })
	return s, nil
}

func (s *stream) ResultChan() <-chan watch.Event { return s.events }

func (s *stream) Stop() { s.api.edit(s.end) }

// end is called with the server's mu held.
func (s *stream) end() {
	if !s.closed {
		s.closed = true
		close(s.events)
		s.api.streams = slices.DeleteFunc(s.api.streams, func(other *stream) bool { return other == s })
	}
}

// tell is called with a.mu held.
func (a *fakeAPI) tell(kind watch.EventType, n *v1.Node) {
	event := watch.Event{Type: kind, Object: n.DeepCopy()}
	a.history = append(a.history, event)
	for _, s := range a.streams {
		if !s.mute {
			s.events <- event
		}
	}
}

// cutWatches ends all watches, with an error if it is not nil.
func (a *fakeAPI) cutWatches(err *metav1.Status) {
	a.edit(func() {
		for _, s := range slices.Clone(a.streams) {
			if err != nil {
				s.events <- watch.Event{Type: watch.Error, Object: err}
			}
			s.end()
		}
	})
}

// bookmark tells all watches that nothing has happened up to now.
func (a *fakeAPI) bookmark() {
	a.edit(func() {
		mark := &v1.Node{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(a.version)}}
		for _, s := range a.streams {
			s.events <- watch.Event{Type: watch.Bookmark, Object: mark}
		}
	})
}

// watches returns from which versions watches were tried since the last take.
func (a *fakeAPI) watches() (from []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.calls {
		if c.verb == "WATCH" {
			from = append(from, c.body)
		}
	}
	return from
}

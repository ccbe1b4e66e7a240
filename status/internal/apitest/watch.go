package apitest

import (
	"context"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Stream is one watch of an API, which guards its fields.
type Stream struct {
	api    *API
	events chan watch.Event
	from   string
	closed bool
	Mute   bool // the connection died without a word
}

// Watch begins as the real one does: with what has happened since the version,
// or with the Node as it is.
func (a *API) Watch(ctx context.Context, name, version string, limit time.Duration) (watch.Interface, error) {
	s := &Stream{api: a, events: make(chan watch.Event, 1000), from: version}
	err := a.do(ctx, "WATCH", version, func() error {
		from, err := strconv.Atoi(version)
		switch {
		case err != nil:
			return apierrors.NewBadRequest("invalid resource version " + version)
		case from > a.Version:
			return apierrors.NewTimeoutError("Too large resource version", 1)
		case from == 0 && a.node != nil:
			s.events <- watch.Event{Type: watch.Added, Object: a.node.DeepCopy()}
		case from > 0 && from < a.Compacted:
			status := metav1.Status{Status: metav1.StatusFailure, Code: 410, Reason: metav1.StatusReasonExpired, Message: "too old resource version"}
			s.events <- watch.Event{Type: watch.Error, Object: &status}
		default:
			for _, e := range a.history {
				if v, _ := strconv.Atoi(e.Object.(*v1.Node).ResourceVersion); v > from && from > 0 {
					s.events <- e
				}
			}
		}
		a.Streams = append(a.Streams, s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, s.Stop)
	timer := time.AfterFunc(limit, func() {
		a.Edit(func() {
			if !s.Mute {
				s.end()
			}
		})
	})
	context.AfterFunc(ctx, func() { timer.Stop() })
	return s, nil
}

func (s *Stream) ResultChan() <-chan watch.Event { return s.events }

func (s *Stream) Stop() { s.api.Edit(s.end) }

// end is called with the server's mu held.
func (s *Stream) end() {
	if !s.closed {
		s.closed = true
		close(s.events)
		s.api.Streams = slices.DeleteFunc(s.api.Streams, func(other *Stream) bool { return other == s })
	}
}

// tell is called with a.mu held.
func (a *API) tell(kind watch.EventType, n *v1.Node) {
	event := watch.Event{Type: kind, Object: n.DeepCopy()}
	a.history = append(a.history, event)
	for _, s := range a.Streams {
		if !s.Mute {
			s.events <- event
		}
	}
}

// CutWatches ends all watches, with an error if it is not nil.
func (a *API) CutWatches(err *metav1.Status) {
	a.Edit(func() {
		for _, s := range slices.Clone(a.Streams) {
			if err != nil {
				s.events <- watch.Event{Type: watch.Error, Object: err}
			}
			s.end()
		}
	})
}

// Bookmark tells all watches that nothing has happened up to now.
func (a *API) Bookmark() {
	a.Edit(func() {
		mark := &v1.Node{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(a.Version)}}
		for _, s := range a.Streams {
			s.events <- watch.Event{Type: watch.Bookmark, Object: mark}
		}
	})
}

// Watches returns from which versions watches were tried since the last Take.
func (a *API) Watches() (from []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.calls {
		if c.Verb == "WATCH" {
			from = append(from, c.Body)
		}
	}
	return from
}

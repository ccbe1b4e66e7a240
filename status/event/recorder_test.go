package event

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

var eventResource = v1.Resource("events")

// fakeAPI is an API server that keeps Events.
type fakeAPI struct {
	mu     sync.Mutex
	events map[string]*v1.Event
	order  []string // names, as they came
	calls  int
	fail   error         // of each call
	lose   error         // of each call that is done all the same
	keep   error         // of each patch
	takes  time.Duration // a call that creates one
}

func (f *fakeAPI) Create(ctx context.Context, e *v1.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(f.takes):
	}
	if f.fail != nil {
		return f.fail
	}
	if f.events[e.Name] != nil {
		return apierrors.NewAlreadyExists(eventResource, e.Name)
	}
	if f.events == nil {
		f.events = map[string]*v1.Event{}
	}
	f.events[e.Name] = e.DeepCopy()
	f.order = append(f.order, e.Name)
	return f.lose
}

func (f *fakeAPI) Patch(_ context.Context, namespace, name string, patch []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	e := f.events[name]
	switch {
	case f.fail != nil:
		return f.fail
	case f.keep != nil:
		return f.keep
	case e == nil || e.Namespace != namespace:
		return apierrors.NewNotFound(eventResource, name)
	}
	if err := json.Unmarshal(patch, e); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return f.lose
}

// set changes how the server behaves.
func (f *fakeAPI) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// texts returns what is kept, as "2x Reason: message".
func (f *fakeAPI) texts() (texts []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range f.order {
		if e := f.events[name]; e != nil {
			texts = append(texts, fmt.Sprintf("%dx %s: %s", e.Count, e.Reason, e.Message))
		}
	}
	return texts
}

// A call that is under way when the process ends is not cut off, but does not keep it
// either; and no other is begun.
func TestRecorderEnds(t *testing.T) {
	for _, test := range []struct {
		takes, want time.Duration
		posted      int
	}{{100 * time.Millisecond, 100 * time.Millisecond, 1}, {10 * time.Second, time.Second, 0}} {
		synctest.Test(t, func(t *testing.T) {
			api := &fakeAPI{takes: test.takes}
			r, err := New(Config{
				Node: func(context.Context) (metav1.OwnerReference, error) { return metav1.OwnerReference{Name: "n"}, nil },
				API:  api, Timeout: time.Minute, Component: "nodeprobe",
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			go func() { synctest.Wait(); cancel() }()
			began := time.Now()
			r.Record("Normal", "First", "is under way")
			r.Record("Normal", "Second", "still waits")
			r.Run(ctx)
			if took := time.Since(began); took != test.want || len(api.texts()) != test.posted || api.calls != 1 {
				t.Errorf("a call that takes %s: returned after %s, want %s; %d calls, posted %q", test.takes, took, test.want, api.calls, api.texts())
			}
		})
	}
}

// recording runs a Recorder in a synctest bubble until act returns.
func recording(t *testing.T, act func(r *Recorder, api *fakeAPI, logs *apitest.Log)) {
	synctest.Test(t, func(t *testing.T) {
		api, logs := &fakeAPI{}, &apitest.Log{}
		r, err := New(Config{
			Node: func(context.Context) (metav1.OwnerReference, error) {
				return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: apitest.NodeName, UID: "uid-1"}, nil
			},
			API: api, Timeout: time.Second, Component: "nodeprobe", Logger: slog.New(slog.NewTextHandler(logs, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		cause := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		act(r, api, logs)
		cancel(cause)
		if err := <-done; !errors.Is(err, cause) {
			t.Errorf("Run returned %v, want %v", err, cause)
		}
	})
}

func TestRecorderPosts(t *testing.T) {
	recording(t, func(r *Recorder, api *fakeAPI, _ *apitest.Log) {
		began := time.Now()
		r.Record(v1.EventTypeWarning, "SystemOOM", "somebody died")
		synctest.Wait()
		if len(api.order) != 1 {
			t.Fatalf("%d events", len(api.order))
		}
		at := metav1.NewTime(began)
		apitest.Diff(t, "event", v1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", apitest.NodeName, began.UnixNano()), Namespace: "default"},
			InvolvedObject: v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: apitest.NodeName, UID: "uid-1"},
			Type:           "Warning", Reason: "SystemOOM", Message: "somebody died",
			Source:              v1.EventSource{Component: "nodeprobe", Host: apitest.NodeName},
			ReportingController: "nodeprobe", ReportingInstance: apitest.NodeName,
			FirstTimestamp: at, LastTimestamp: at, Count: 1,
		}, *api.events[api.order[0]])

		time.Sleep(time.Minute)
		r.Record(v1.EventTypeWarning, "SystemOOM", "somebody died")
		synctest.Wait()
		apitest.Diff(t, "events", []string{"2x SystemOOM: somebody died"}, api.texts())
		e := api.events[api.order[0]]
		apitest.Diff(t, "first", at.Time, e.FirstTimestamp.Time)
		apitest.Diff(t, "last", began.Add(time.Minute).UTC(), e.LastTimestamp.UTC())
	})
}

// An Event that the API server has deleted is created again.
func TestRecorderExpiredEvent(t *testing.T) {
	recording(t, func(r *Recorder, api *fakeAPI, _ *apitest.Log) {
		r.Record(v1.EventTypeNormal, "NodeReady", "m")
		synctest.Wait()
		api.set(func() { clear(api.events) })
		time.Sleep(time.Second)
		r.Record(v1.EventTypeNormal, "NodeReady", "m")
		synctest.Wait()
		apitest.Diff(t, "events", []string{"1x NodeReady: m"}, api.texts())
	})
}

// A Node that was deleted and made again is another one, to those who look for
// its Events.
func TestRecorderOtherNode(t *testing.T) {
	recording(t, func(r *Recorder, api *fakeAPI, _ *apitest.Log) {
		r.Record(v1.EventTypeNormal, "NodeReady", "m")
		synctest.Wait()
		r.cfg.Node = func(context.Context) (metav1.OwnerReference, error) {
			return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: apitest.NodeName, UID: "uid-2"}, nil
		}
		time.Sleep(time.Second)
		r.Record(v1.EventTypeNormal, "NodeReady", "m")
		synctest.Wait()
		var uids []types.UID
		for _, name := range api.order {
			uids = append(uids, api.events[name].InvolvedObject.UID)
		}
		apitest.Diff(t, "uids", []types.UID{"uid-1", "uid-2"}, uids)
	})
}

func TestRecorderOutage(t *testing.T) {
	for name, c := range map[string]struct {
		fail func(api *fakeAPI, err error)
	}{
		"refused connection": {func(api *fakeAPI, err error) { api.fail = err }},
		"lost answer":        {func(api *fakeAPI, err error) { api.lose = err }},
	} {
		t.Run(name, func(t *testing.T) {
			recording(t, func(r *Recorder, api *fakeAPI, logs *apitest.Log) {
				api.set(func() { c.fail(api, apitest.ErrDown) })
				at := time.Now()
				r.Record(v1.EventTypeNormal, "NodeReady", "m")
				time.Sleep(10 * time.Minute)
				r.Record(v1.EventTypeNormal, "NodeNotReady", "m")
				api.set(func() { c.fail(api, nil) })
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				apitest.Diff(t, "events", []string{"1x NodeReady: m", "1x NodeNotReady: m"}, api.texts())
				apitest.Diff(t, "when it happened", at.UTC(), api.events[api.order[0]].FirstTimestamp.UTC())
				if api.calls > 20 {
					t.Errorf("%d calls in 12 minutes", api.calls)
				}
				if got := logs.With("not posted"); len(got) > 1 {
					t.Errorf("logged %d times: %q", len(got), got)
				}
			})
		})
	}
}

// No queue without an end, and nobody who records waits.
func TestRecorderFullQueue(t *testing.T) {
	recording(t, func(r *Recorder, api *fakeAPI, _ *apitest.Log) {
		api.set(func() { api.fail = apitest.ErrDown })
		for i := range 1000 {
			r.Record(v1.EventTypeNormal, fmt.Sprint("Reason", i), "m")
		}
		api.set(func() { api.fail = nil })
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(api.texts()); n < queueLength || n > queueLength+1 {
			t.Errorf("%d events posted, want those that fit the queue of %d", n, queueLength)
		}
	})
}

// An Event that the API server will never take must not hold up the others.
func TestRecorderRefused(t *testing.T) {
	recording(t, func(r *Recorder, api *fakeAPI, logs *apitest.Log) {
		api.set(func() { api.fail = apierrors.NewForbidden(eventResource, "", errors.New("no create of events")) })
		for range 3 {
			r.Record(v1.EventTypeNormal, "NodeReady", "m")
			time.Sleep(time.Second)
		}
		synctest.Wait()
		apitest.Diff(t, "calls", 3, api.calls)
		if got := logs.With("no create of events"); len(got) != 1 {
			t.Errorf("logged %q, want one line naming what is not allowed", got)
		}
		api.set(func() { api.fail = nil })
		r.Record(v1.EventTypeNormal, "NodeReady", "m")
		synctest.Wait()
		apitest.Diff(t, "events", []string{"1x NodeReady: m"}, api.texts())
	})
}

// Who may create Events and not patch them creates each anew, and says so once.
func TestRecorderMayNotPatch(t *testing.T) {
	recording(t, func(r *Recorder, api *fakeAPI, logs *apitest.Log) {
		api.set(func() { api.keep = apierrors.NewForbidden(eventResource, "", errors.New("no patch of events")) })
		for range 3 {
			r.Record(v1.EventTypeNormal, "NodeReady", "m")
			time.Sleep(time.Second)
		}
		synctest.Wait()
		apitest.Diff(t, "events", []string{"1x NodeReady: m", "1x NodeReady: m", "1x NodeReady: m"}, api.texts())
		if got := logs.With("level"); len(got) != 1 || !strings.Contains(got[0], "no patch of events") {
			t.Errorf("logged %q, want one line naming what is not allowed", got)
		}
	})
}

func TestConfig(t *testing.T) {
	node := func(context.Context) (metav1.OwnerReference, error) { return metav1.OwnerReference{}, nil }
	for want, cfg := range map[string]Config{
		"node and API must be given": {API: &fakeAPI{}, Timeout: time.Second},
		"timeout 0s is not positive": {Node: node, API: &fakeAPI{}},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// Package apitest is an API server for tests: it holds one Node, applies patches, serves
// watches, fails as it is asked to, and records every call.
package apitest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// NodeName is the name of the Node.
const NodeName = "node-1"

// Epoch is where the clock of a synctest bubble starts.
var Epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// What a call may fail with.
var (
	nodes        = v1.Resource("nodes")
	ErrDown      = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	ErrCut       = io.ErrUnexpectedEOF
	ErrServer    = apierrors.NewInternalError(errors.New("etcdserver: leader changed"))
	ErrForbidden = apierrors.NewForbidden(nodes, NodeName, errors.New("no"))
	ErrTooMany   = apierrors.NewTooManyRequestsError("slow down")
	ErrConflict  = apierrors.NewConflict(nodes, NodeName, errors.New("modified"))
)

// Call is one request, or something else of which the order matters.
type Call struct {
	Verb string
	At   time.Time
	Body string
}

// API is an API server that holds one Node, for tests in a synctest bubble. It decides
// about writes as the real one does, serves watches, and records every call in order.
// Exported fields are changed by Edit.
type API struct {
	mu        sync.Mutex
	node      *v1.Node
	Version   int // the latest
	uids      int
	history   []watch.Event
	Compacted int // versions up to this one are too old to watch from
	Streams   []*Stream
	calls     []Call

	// Fail may refuse a call; Lose may lose the answer to one that is done; Hang
	// holds the verbs of calls that only end with their context.
	Fail, Lose func(verb string) error
	Hang       string
	Latency    time.Duration
}

func (a *API) do(ctx context.Context, verb, body string, act func() error) error {
	a.Note(verb, body)
	a.mu.Lock()
	latency, hang := a.Latency, a.Hang
	a.mu.Unlock()
	if latency > 0 {
		select {
		case <-time.After(latency):
		case <-ctx.Done():
		}
	}
	if strings.Contains(hang, verb) {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.Fail != nil {
		if err := a.Fail(verb); err != nil {
			return err
		}
	}
	if err := act(); err != nil {
		return err
	}
	if a.Lose != nil {
		return a.Lose(verb)
	}
	return nil
}

func (a *API) Get(ctx context.Context, name string) (node *v1.Node, err error) {
	err = a.do(ctx, "GET", "", func() error {
		node, err = a.stored(name)
		return err
	})
	return answer(node, err)
}

func (a *API) Create(ctx context.Context, n *v1.Node) (node *v1.Node, err error) {
	err = a.do(ctx, "POST", "", func() error {
		switch {
		case n.ResourceVersion != "":
			return apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
		case a.node != nil:
			return apierrors.NewAlreadyExists(nodes, n.Name)
		}
		node = a.store(n)
		return nil
	})
	return answer(node, err)
}

func (a *API) PatchStatus(ctx context.Context, name string, patch []byte) (node *v1.Node, err error) {
	err = a.do(ctx, "PATCH", string(patch), func() error {
		old, err := a.stored(name)
		if err != nil {
			return err
		}
		patched, err := ApplyPatch(old, patch)
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		node = a.store(patched)
		return nil
	})
	return answer(node, err)
}

// answer is what a client gets: an error comes without a Node.
func answer(node *v1.Node, err error) (*v1.Node, error) {
	if err != nil {
		return nil, err
	}
	return node, nil
}

// stored is called with a.mu held.
func (a *API) stored(name string) (*v1.Node, error) {
	if a.node == nil || a.node.Name != name {
		return nil, apierrors.NewNotFound(nodes, name)
	}
	return a.node.DeepCopy(), nil
}

// store is called with a.mu held. A write that changes nothing is none.
func (a *API) store(n *v1.Node) *v1.Node {
	n = OnWire(n)
	event := watch.Modified
	if a.node == nil {
		event = watch.Added
		a.uids++
		n.UID = types.UID("uid-" + strconv.Itoa(a.uids))
		n.CreationTimestamp = metav1.NewTime(time.Now().Truncate(time.Second))
	} else {
		old := a.node.DeepCopy()
		n.UID, n.ResourceVersion = old.UID, old.ResourceVersion
		if before, after := OnWire(old), OnWire(n); sameJSON(before, after) {
			return n.DeepCopy()
		}
	}
	a.Version++
	n.ResourceVersion = strconv.Itoa(a.Version)
	a.node = n
	a.tell(event, n)
	return n.DeepCopy()
}

// OnWire returns what is left of a Node after it was sent over the network.
func OnWire(n *v1.Node) *v1.Node {
	data, err := json.Marshal(n)
	if err != nil {
		panic(err)
	}
	var node v1.Node
	if err := json.Unmarshal(data, &node); err != nil {
		panic(err)
	}
	return &node
}

func sameJSON(a, b *v1.Node) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

// Note records a call, or whatever else is to appear among the calls.
func (a *API) Note(verb, body string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, Call{verb, time.Now(), body})
}

// Edit changes the server behind the Updater's back.
func (a *API) Edit(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// Put is a write by somebody else; the Node need not exist.
func (a *API) Put(f func(*v1.Node)) {
	a.Edit(func() {
		n := a.node.DeepCopy()
		if n == nil {
			n = &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: NodeName}}
		}
		f(n)
		a.store(n)
	})
}

// Remove is "kubectl delete node".
func (a *API) Remove() {
	a.Edit(func() {
		gone := a.node
		a.node = nil
		a.Version++
		gone.ResourceVersion = strconv.Itoa(a.Version)
		a.tell(watch.Deleted, gone)
	})
}

// Current returns a copy of the Node.
func (a *API) Current() *v1.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node.DeepCopy()
}

// Take returns the calls since the last Take. Watches are left out.
func (a *API) Take() []Call {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	calls := a.calls
	a.calls = nil
	return slices.DeleteFunc(calls, func(c Call) bool { return c.Verb == "WATCH" })
}

// Verbs returns the verbs of calls, separated by spaces.
func Verbs(calls []Call) string {
	var words []string
	for _, c := range calls {
		words = append(words, c.Verb)
	}
	return strings.Join(words, " ")
}

// Took checks what the Updater has done since the last Take.
func (a *API) Took(t *testing.T, what, want string) {
	t.Helper()
	if got := Verbs(a.Take()); got != want {
		t.Errorf("%s, at %v: calls %q, want %q", what, time.Since(Epoch), got, want)
	}
}

// Refuse makes calls of these verbs fail; "" ends that.
func (a *API) Refuse(verbs string, err error) {
	a.Edit(func() {
		a.Fail = func(verb string) error {
			if strings.Contains(verbs, verb) {
				return err
			}
			return nil
		}
	})
}

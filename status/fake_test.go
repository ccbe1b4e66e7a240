package status

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

var (
	nodes        = v1.Resource("nodes")
	errDown      = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	errCut       = io.ErrUnexpectedEOF
	errServer    = apierrors.NewInternalError(errors.New("etcdserver: leader changed"))
	errForbidden = apierrors.NewForbidden(nodes, nodeName, errors.New("no"))
	errTooMany   = apierrors.NewTooManyRequestsError("slow down")
	errConflict  = apierrors.NewConflict(nodes, nodeName, errors.New("modified"))
)

// call is one request, or something else that is to be seen in order.
type call struct {
	verb string
	at   time.Time
	body string
}

// fakeAPI is an API server that holds one Node. It decides about writes as the
// real one does, tells its watches, and notes every call in order.
type fakeAPI struct {
	mu        sync.Mutex
	node      *v1.Node
	version   int
	uids      int
	history   []watch.Event
	compacted int // versions up to this one are too old to watch from
	streams   []*stream
	calls     []call

	// fail may refuse a call; lose may lose the answer to one that is done; hang
	// holds the verbs that end with their context only.
	fail, lose func(verb string) error
	hang       string
	latency    time.Duration
}

func (a *fakeAPI) do(ctx context.Context, verb, body string, act func() error) error {
	a.note(verb, body)
	a.mu.Lock()
	latency, hang := a.latency, a.hang
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
	if a.fail != nil {
		if err := a.fail(verb); err != nil {
			return err
		}
	}
	if err := act(); err != nil {
		return err
	}
	if a.lose != nil {
		return a.lose(verb)
	}
	return nil
}

func (a *fakeAPI) Get(ctx context.Context, name string) (node *v1.Node, err error) {
	err = a.do(ctx, "GET", "", func() error {
		node, err = a.stored(name)
		return err
	})
	return answer(node, err)
}

func (a *fakeAPI) Create(ctx context.Context, n *v1.Node) (node *v1.Node, err error) {
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

func (a *fakeAPI) PatchStatus(ctx context.Context, name string, patch []byte) (node *v1.Node, err error) {
	err = a.do(ctx, "PATCH", string(patch), func() error {
		old, err := a.stored(name)
		if err != nil {
			return err
		}
		patched, err := applyPatch(old, patch)
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
func (a *fakeAPI) stored(name string) (*v1.Node, error) {
	if a.node == nil || a.node.Name != name {
		return nil, apierrors.NewNotFound(nodes, name)
	}
	return a.node.DeepCopy(), nil
}

// store is called with a.mu held. A write that changes nothing is none.
func (a *fakeAPI) store(n *v1.Node) *v1.Node {
	n = onWire(n)
	event := watch.Modified
	if a.node == nil {
		event = watch.Added
		a.uids++
		n.UID = types.UID("uid-" + strconv.Itoa(a.uids))
		n.CreationTimestamp = metav1.NewTime(time.Now().Truncate(time.Second))
	} else {
		old := a.node.DeepCopy()
		n.UID, n.ResourceVersion = old.UID, old.ResourceVersion
		if before, after := onWire(old), onWire(n); sameJSON(before, after) {
			return n.DeepCopy()
		}
	}
	a.version++
	n.ResourceVersion = strconv.Itoa(a.version)
	a.node = n
	a.tell(event, n)
	return n.DeepCopy()
}

// onWire is what is left of a Node after a way over the network.
func onWire(n *v1.Node) *v1.Node {
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

func (a *fakeAPI) note(verb, body string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, call{verb, time.Now(), body})
}

// edit changes the server behind the Updater's back.
func (a *fakeAPI) edit(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// put is a write by somebody else; the Node need not exist.
func (a *fakeAPI) put(f func(*v1.Node)) {
	a.edit(func() {
		n := a.node.DeepCopy()
		if n == nil {
			n = &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
		}
		f(n)
		a.store(n)
	})
}

// remove is "kubectl delete node".
func (a *fakeAPI) remove() {
	a.edit(func() {
		gone := a.node
		a.node = nil
		a.version++
		gone.ResourceVersion = strconv.Itoa(a.version)
		a.tell(watch.Deleted, gone)
	})
}

func (a *fakeAPI) current() *v1.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node.DeepCopy()
}

// take returns the calls since the last take. Watches are left out.
func (a *fakeAPI) take() []call {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	calls := a.calls
	a.calls = nil
	return slices.DeleteFunc(calls, func(c call) bool { return c.verb == "WATCH" })
}

func verbs(calls []call) string {
	var words []string
	for _, c := range calls {
		words = append(words, c.verb)
	}
	return strings.Join(words, " ")
}

// took checks what the Updater has done since the last take.
func (a *fakeAPI) took(t *testing.T, what, want string) {
	t.Helper()
	if got := verbs(a.take()); got != want {
		t.Errorf("%s, at %v: calls %q, want %q", what, time.Since(epoch), got, want)
	}
}

// refuse makes calls of these verbs fail; "" ends that.
func (a *fakeAPI) refuse(verbs string, err error) {
	a.edit(func() {
		a.fail = func(verb string) error {
			if strings.Contains(verbs, verb) {
				return err
			}
			return nil
		}
	})
}

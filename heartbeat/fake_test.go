package heartbeat

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const node = "node-1"

var (
	leaseResource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	nodeResource  = schema.GroupResource{Resource: "nodes"}

	errServer    = apierrors.NewInternalError(errors.New("etcdserver: leader changed"))
	errForbidden = apierrors.NewForbidden(leaseResource, node, errors.New("no"))
	errTooMany   = apierrors.NewTooManyRequestsError("slow down")
	errClosed    = io.ErrUnexpectedEOF
	errConflict  = apierrors.NewConflict(leaseResource, node, errors.New("the object has been modified"))
)

// fakeAPI is an API server that holds one lease and one Node. It decides about
// writes as the real one does and notes every call in order.
type fakeAPI struct {
	mu      sync.Mutex
	lease   *coordinationv1.Lease
	nodeUID types.UID // "" where there is no Node
	version int
	calls   []call
	stored  []time.Time // renew times written by the Heartbeater
	sick    error       // what Config.Healthy returns

	// fail may refuse a call; lose may lose the answer to one that is done.
	fail, lose func(verb string) error
	latency    time.Duration
	hang       string // verbs of calls that end with their context only
	// clientsetLike makes PUT of a deleted lease fail as client-go's fake does.
	clientsetLike bool
}

type call struct {
	verb       string
	start, end time.Time
}

// newFakeAPI returns a server that knows the Node but no lease.
func newFakeAPI() *fakeAPI { return &fakeAPI{nodeUID: "node-uid"} }

func (a *fakeAPI) do(ctx context.Context, verb string, act func() error) error {
	a.mu.Lock()
	i := len(a.calls)
	a.calls = append(a.calls, call{verb: verb, start: time.Now(), end: time.Now()})
	fail, lose, latency, hang := a.fail, a.lose, a.latency, a.hang
	a.mu.Unlock()
	if strings.Contains(hang, verb) {
		<-ctx.Done()
		return ctx.Err()
	}
	if latency > 0 {
		select {
		case <-time.After(latency):
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls[i].end = time.Now()
	if fail != nil {
		if err := fail(verb); err != nil {
			return err
		}
	}
	if err := act(); err != nil {
		return err
	}
	if lose != nil {
		return lose(verb)
	}
	return nil
}

func (a *fakeAPI) Get(ctx context.Context, name string) (lease *coordinationv1.Lease, err error) {
	err = a.do(ctx, "GET", func() error {
		if a.lease == nil || a.lease.Name != name {
			return apierrors.NewNotFound(leaseResource, name)
		}
		lease = a.lease.DeepCopy()
		return nil
	})
	return lease, err
}

func (a *fakeAPI) Create(ctx context.Context, l *coordinationv1.Lease) (lease *coordinationv1.Lease, err error) {
	err = a.do(ctx, "POST", func() error {
		if a.lease != nil {
			return apierrors.NewAlreadyExists(leaseResource, l.Name)
		}
		lease = a.store(l, true)
		return nil
	})
	return lease, err
}

func (a *fakeAPI) Update(ctx context.Context, l *coordinationv1.Lease) (lease *coordinationv1.Lease, err error) {
	err = a.do(ctx, "PUT", func() error {
		switch {
		case a.lease == nil && a.clientsetLike:
			return apierrors.NewNotFound(leaseResource, l.Name)
		case a.lease == nil && l.UID != "", a.lease != nil && l.UID != a.lease.UID:
			return errConflict // the UID is a precondition, checked before all else
		case a.lease != nil && l.ResourceVersion == "":
			return apierrors.NewBadRequest("resourceVersion must be specified for an update")
		case a.lease != nil && l.ResourceVersion != a.lease.ResourceVersion:
			return errConflict
		}
		lease = a.store(l, true)
		return nil
	})
	return lease, err
}

// store is called with a.mu held.
func (a *fakeAPI) store(l *coordinationv1.Lease, ours bool) *coordinationv1.Lease {
	l = l.DeepCopy()
	a.version++
	l.ResourceVersion = strconv.Itoa(a.version)
	if a.lease == nil {
		l.UID = types.UID("lease-" + l.ResourceVersion)
	}
	if l.Spec.RenewTime != nil {
		l.Spec.RenewTime.Time = l.Spec.RenewTime.Truncate(time.Microsecond)
	}
	if ours {
		a.stored = append(a.stored, l.Spec.RenewTime.Time)
	}
	a.lease = l
	return l.DeepCopy()
}

// owner is Config.Owner.
func (a *fakeAPI) owner(ctx context.Context) (owner metav1.OwnerReference, err error) {
	err = a.do(ctx, "NODE", func() error {
		if a.nodeUID == "" {
			return apierrors.NewNotFound(nodeResource, node)
		}
		owner = metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node, UID: a.nodeUID}
		return nil
	})
	return owner, err
}

// healthy is Config.Healthy.
func (a *fakeAPI) healthy() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sick
}

// note records something that is not a call, to see it in order.
func (a *fakeAPI) note(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, call{verb: what, start: time.Now(), end: time.Now()})
}

// edit changes the server behind the Heartbeater's back.
func (a *fakeAPI) edit(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// put is a write by another client; the lease need not exist.
func (a *fakeAPI) put(f func(*coordinationv1.Lease)) {
	a.edit(func() {
		l := a.lease.DeepCopy()
		if l == nil {
			l = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: Namespace}}
		}
		f(l)
		a.store(l, false)
	})
}

// renewAs is a renewal by a live kubelet whose clock is ahead by offset.
func (a *fakeAPI) renewAs(manager string, offset time.Duration) {
	a.put(func(l *coordinationv1.Lease) {
		l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now().Add(offset)}
		fields := metav1.NewFieldsV1(`{"f:spec":{"f:renewTime":{}}}`)
		l.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: manager, FieldsV1: fields}}
	})
}

func (a *fakeAPI) current() *coordinationv1.Lease {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lease.DeepCopy()
}

// take returns the calls since the last take.
func (a *fakeAPI) take() []call {
	a.mu.Lock()
	defer a.mu.Unlock()
	calls := a.calls
	a.calls = nil
	return calls
}

func verbs(calls []call) string {
	var words []string
	for _, c := range calls {
		words = append(words, c.verb)
	}
	return strings.Join(words, " ")
}

// took checks what the Heartbeater has done since the last check.
func (a *fakeAPI) took(t *testing.T, want string) {
	t.Helper()
	synctest.Wait()
	if got := verbs(a.take()); got != want {
		t.Errorf("at %v: calls %q, want %q", time.Since(epoch), got, want)
	}
}

// round waits until the next round begins and checks its calls.
func (a *fakeAPI) round(t *testing.T, want string) {
	t.Helper()
	a.took(t, "")
	for range 110 {
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		a.mu.Lock()
		n := len(a.calls)
		a.mu.Unlock()
		if n > 0 {
			break
		}
	}
	a.took(t, want)
}

// epoch is where the clock of a synctest bubble starts.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (a *fakeAPI) config() Config {
	return Config{
		Leases:    a,
		NodeName:  node,
		Duration:  40 * time.Second,
		Healthy:   a.healthy,
		Owner:     a.owner,
		OnFailure: func() { a.note("FAILURE") },
		OnLost:    func() { a.note("LOST") },
	}
}

// run runs a Heartbeater within a synctest bubble until test returns. It checks
// that Run ends at once with the cause, and what holds for every scenario: the
// renew times that we stored only go forward, in whole microseconds.
func run(t *testing.T, config Config, test func(h *Heartbeater)) {
	t.Helper()
	h, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	synctest.Wait()
	test(h)
	select {
	case err := <-done:
		t.Fatalf("Run returned early: %v", err)
	default:
	}
	cancel(cause)
	stopped := time.Now()
	if err := <-done; !errors.Is(err, cause) {
		t.Errorf("Run returned %v, want the cause %v", err, cause)
	}
	if late := time.Since(stopped); late > 0 {
		t.Errorf("Run returned %v after the cancellation", late)
	}
	api := config.Leases.(*fakeAPI)
	for i, renewTime := range api.stored {
		if !renewTime.Equal(renewTime.Truncate(time.Microsecond)) {
			t.Errorf("renew time %v is not in whole microseconds", renewTime)
		}
		if i > 0 && !renewTime.After(api.stored[i-1]) {
			t.Errorf("renew time went from %v to %v", api.stored[i-1], renewTime)
		}
	}
}

// existing makes the server hold a complete lease that was renewed ago.
func (a *fakeAPI) existing(ago time.Duration) {
	a.put(func(l *coordinationv1.Lease) {
		holder, seconds, transitions := node, int32(25), int32(3)
		l.Spec = coordinationv1.LeaseSpec{
			HolderIdentity:       &holder,
			LeaseDurationSeconds: &seconds,
			AcquireTime:          &metav1.MicroTime{Time: time.Now().Add(-24 * time.Hour)},
			RenewTime:            &metav1.MicroTime{Time: time.Now().Add(-ago)},
			LeaseTransitions:     &transitions,
		}
		l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: "other-uid"}}
	})
}

// failing returns a fail function that answers the verb with each error in turn
// and then lets calls pass; nil lets one pass.
func failing(verb string, errs ...error) func(string) error {
	return func(v string) error {
		if v != verb || len(errs) == 0 {
			return nil
		}
		err := errs[0]
		errs = errs[1:]
		return err
	}
}

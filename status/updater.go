package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeprobe/nodeprobe/internal/once"
)

// Updater follows a Node, keeps a Content posted on it, and registers it if a Registrar
// is given. That happens once: a Node that is deleted afterwards stays deleted until a
// restart. If another client creates one of that name, its status is posted as before,
// and what registration owns on it is mended.
type Updater struct {
	cfg     Config
	metrics *metrics
	log     *slog.Logger

	wakeup  chan struct{}
	known   chan struct{}           // the Node became known: there is something to watch
	sure    latch                   // open while node is known to exist; Recheck shuts it
	node    atomic.Pointer[v1.Node] // last known; written by Run alone, and never changed once stored
	doubt   atomic.Bool             // node may be out of date: read it before the next post
	plans   atomic.Pointer[Plan]    // from the latest Change that is not in force yet
	ok      atomic.Pointer[error]   // of the latest pass
	last    atomic.Pointer[Posted]  // the latest patch that the API server took
	gone    atomic.Pointer[error]   // why the Node does not exist any more; nil while it does, or has not yet
	flushed flushes
	follows bool // Content writes nothing

	// Owned by Run.
	uid       types.UID // of the registered Node
	since     time.Time // of its registration
	report    reporter
	pace      pacer
	backoff   registerBackoff
	held      bool
	notBefore time.Time // from the API server's Retry-After
}

// New makes an Updater. It starts no goroutine and sends nothing.
func New(cfg Config) (*Updater, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	u := &Updater{
		cfg: cfg, log: cfg.Logger, metrics: newMetrics(cfg.Registerer),
		wakeup: make(chan struct{}, 1), known: make(chan struct{}, 1),
		pace: newPacer(),
	}
	if _, u.follows = cfg.Content.(Follow); !u.follows {
		u.setReportFrequency(cfg.ReportFrequency)
	}
	u.ok.Store(&errNotRegistered)
	return u, nil
}

// Wake asks for a pass now. It never blocks.
func (u *Updater) Wake() {
	select {
	case u.wakeup <- struct{}{}:
	default:
	}
}

// Recheck asks for a pass now that begins with reading the Node, which may have been
// deleted. Owner waits until that is done. It never blocks.
func (u *Updater) Recheck() {
	u.sure.shut()
	u.doubt.Store(true)
	u.Wake()
}

var errNotRegistered = errors.New("node is not registered yet")

// Ready returns nil if the latest pass succeeded, and otherwise why it did not.
func (u *Updater) Ready() error { return *u.ok.Load() }

// Node returns the last known Node, or nil. The caller must not change it.
func (u *Updater) Node() *v1.Node { return u.node.Load() }

// Posted is a patch that the API server accepted.
type Posted struct {
	Time   time.Time // of the answer
	Reason string    // "changed" or "period"
	Bytes  int       // of the body
}

// Posted returns the latest patch, the zero Posted before the first.
func (u *Updater) Posted() Posted {
	if last := u.last.Load(); last != nil {
		return *last
	}
	return Posted{}
}

// Owner returns a reference to the Node, for the Lease and for Events. Until ctx ends, it
// waits for the Node to be known, so that the Lease follows the Node at once, and for the
// check that Recheck asks for, so that no Lease is made for a deleted Node. While there is
// no Node, its error satisfies apierrors.IsNotFound.
func (u *Updater) Owner(ctx context.Context) (metav1.OwnerReference, error) {
	err := u.sure.wait(ctx)
	node := u.Node()
	switch {
	case node == nil:
		return metav1.OwnerReference{}, apierrors.NewNotFound(v1.Resource("nodes"), u.cfg.NodeName)
	case err != nil:
		return metav1.OwnerReference{}, fmt.Errorf("check that node %s exists: %w", u.cfg.NodeName, err)
	}
	return metav1.OwnerReference{
		APIVersion: v1.SchemeGroupVersion.String(), Kind: "Node", Name: node.Name, UID: node.UID,
	}, nil
}

// Run registers the Node and keeps its status posted until ctx ends, and
// returns the cause of that. It must be called once.
func (u *Updater) Run(ctx context.Context) error {
	var watcher sync.WaitGroup
	defer watcher.Wait()
	seen := make(chan sighting)
	watchCtx, stop := context.WithCancel(ctx)
	defer stop()
	watcher.Go(func() { u.watchNode(watchCtx, seen) })

	wait := u.backoff.step()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	u.alive(wait)
	for {
		select {
		case <-ctx.Done():
		case s := <-seen:
			if !u.sighted(s) {
				continue
			}
			if u.Node() == nil { // a controller that deleted it may do so again
				wait = u.backoff.step()
				u.alive(wait)
				timer.Reset(wait)
				continue
			}
		case <-u.wakeup:
			if u.Node() == nil {
				continue // the back-off decides when to try again
			}
		case <-timer.C:
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		u.alive(0)
		wait = u.step(ctx)
		u.alive(wait)
		timer.Reset(wait)
	}
}

// alive reports that Run goes on, and will again after a wait and one attempt to
// register or to post: that is up to four calls, and a draft that may take as long as
// one, as setters may ask a name server.
func (u *Updater) alive(wait time.Duration) { u.cfg.Alive(wait + 5*u.cfg.Timeout + 10*time.Second) }

// Post posts what there is to say, now and in one attempt, after Run has returned.
// It does nothing if the Node is not known. While Run runs, use Flush.
func (u *Updater) Post(ctx context.Context) error {
	if u.Node() == nil {
		return nil
	}
	if wait := time.Until(u.notBefore); wait > 0 {
		return fmt.Errorf("the API server asked to retry after another %s", wait.Round(time.Second))
	}
	paid := true // no token is left to save
	_, err := u.try(ctx, &paid)
	return err
}

// sighted takes what the watch saw, and reports whether it is new. What is older than
// the answer to a patch is an echo.
func (u *Updater) sighted(s sighting) bool {
	node := u.Node()
	switch {
	case node == nil:
		return false
	case s.node == nil:
		if s.gone != node.UID {
			return false // another Node has taken its place
		}
		u.lost(u.lossOf())
	case !newer(s.node.ResourceVersion, node.ResourceVersion):
		return false
	default:
		u.know(s.node)
	}
	return true
}

// know sets the last known Node.
func (u *Updater) know(node *v1.Node) {
	u.node.Store(node)
	u.cfg.Seen(node)
}

// record records Events.
func (u *Updater) record(events []Event) {
	for _, e := range events {
		u.cfg.Record(e.Type, e.Reason, e.Message)
	}
}

// step does what is due now, and returns how long to wait for the next step.
func (u *Updater) step(ctx context.Context) time.Duration {
	u.change()
	if err := u.cfg.Allow(u.Node()); err != nil {
		u.result(err)
		if u.Node() == nil {
			return u.backoff.step()
		}
		return u.cfg.UpdateFrequency
	}
	if wait := time.Until(u.notBefore); wait > 0 {
		return wait // even after a wake-up
	}
	if u.replaced() {
		u.lost(errReplaced)
		return u.backoff.step()
	}
	paid := false
	if u.Node() == nil {
		if wait := u.pace.wait(time.Now(), true); wait > 0 {
			return wait
		}
		if err := u.register(ctx); err != nil {
			u.failed(ctx, err)
			return max(u.backoff.step(), asked(err))
		}
		// Registration and the first status take one token together. An attempt that
		// fails takes none: the back-off bounds those. Finding a Node that others
		// registered is no write.
		if u.cfg.Registrar != nil {
			u.pace.post(time.Now())
			paid = true
		}
		select {
		case u.known <- struct{}{}:
		default:
		}
	}
	wait, err := u.pass(ctx, paid)
	switch {
	case apierrors.IsNotFound(err):
		u.lost(u.lossOf())
		return u.backoff.step()
	case u.replaced():
		u.lost(errReplaced)
		return u.backoff.step()
	}
	if err != nil {
		u.failed(ctx, err)
		if delay := asked(err); delay > 0 {
			return delay
		}
	}
	return wait
}

// failed keeps the error of a step, unless it failed because Run is to end.
func (u *Updater) failed(ctx context.Context, err error) {
	if ctx.Err() == nil {
		u.notBefore = time.Now().Add(asked(err))
		u.result(err)
	}
}

// result keeps the latest outcome for Ready, and logs it once per change.
func (u *Updater) result(err error) {
	const key = "node status"
	first := errors.Is(*u.ok.Swap(&err), errNotRegistered)
	switch {
	case err != nil:
		u.log.Error("node status is not posted", once.Failure, key, "node", u.cfg.NodeName, "err", err)
	case first:
		u.log.Info("node status is posted", "node", u.cfg.NodeName)
	default:
		u.log.Info("node status is posted", once.Recovery, key, "node", u.cfg.NodeName)
	}
}

// notePartial logs once per change which parts could not be set. The rest of the
// status is posted all the same.
func (u *Updater) notePartial(err error) {
	const key = "parts of the node status"
	if err != nil {
		u.log.Warn("part of the node's status could not be set", once.Failure, key, "node", u.cfg.NodeName, "err", err)
		return
	}
	u.log.Info("all of the node's status could be set", once.Recovery, key, "node", u.cfg.NodeName)
}

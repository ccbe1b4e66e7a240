package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Config says what the Node is to say, and how to reach it.
type Config struct {
	NodeName string
	// Nodes is the API. Timeout bounds each call to it.
	Nodes   Nodes
	Timeout time.Duration
	// Facts returns the present facts. It is called at each pass.
	Facts func() Facts
	// Adopt is called when a Node is found that this process did not create,
	// before anything is posted: what its conditions say is history that the
	// evaluator does not know. The next call of Facts must take it into account.
	Adopt func(*v1.Node)
	// OnFailure is called at each failure to post but the first in a row: the
	// connection may be half dead.
	OnFailure func()

	// Register says whether to create the Node if there is none.
	Register     bool
	Registration Registration
	Addresses    Addresses
	Resources    Resources
	// KubeletVersion and Port are shown as the kubelet's.
	KubeletVersion string
	Port           int32
	// Setters run after the built-in ones, in order.
	Setters []Setter

	// UpdateFrequency is the time between two passes that nothing asked for;
	// ReportFrequency is the time after which an unchanged status is posted.
	UpdateFrequency, ReportFrequency time.Duration

	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

func (c *Config) validate() error {
	switch {
	case c.NodeName == "":
		return errors.New("node name is empty")
	case c.Nodes == nil || c.Facts == nil:
		return errors.New("nodes and facts must be given")
	case c.UpdateFrequency <= 0:
		return fmt.Errorf("update frequency %s is not positive", c.UpdateFrequency)
	case c.ReportFrequency <= 0:
		return fmt.Errorf("report frequency %s is not positive", c.ReportFrequency)
	case c.Timeout <= 0:
		return fmt.Errorf("timeout %s is not positive", c.Timeout)
	}
	return nil
}

// updateAttempts is how often one pass tries to post, without a pause.
const updateAttempts = 5

// Updater keeps the Node registered and its status posted.
type Updater struct {
	cfg     Config
	metrics *metrics
	log     *slog.Logger

	poke  chan struct{}
	known chan struct{}           // the Node became known: there is something to watch
	node  atomic.Pointer[v1.Node] // last known; written by Run alone, and never changed once stored
	ok    atomic.Pointer[error]   // of the latest pass

	// Owned by Run.
	report        reporter
	pace          pacer
	backoff       registerBackoff
	logged        string
	settersLogged string
	held          bool
}

// New makes an Updater. It starts no goroutine and sends nothing.
func New(cfg Config) (*Updater, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Adopt == nil {
		cfg.Adopt = func(*v1.Node) {}
	}
	if cfg.OnFailure == nil {
		cfg.OnFailure = func() {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	u := &Updater{
		cfg: cfg, log: cfg.Logger, metrics: newMetrics(cfg.Registerer),
		poke: make(chan struct{}, 1), known: make(chan struct{}, 1), pace: newPacer(), report: reporter{period: cfg.ReportFrequency},
	}
	return u, nil
}

// Wake asks for a pass now. It never blocks.
func (u *Updater) Wake() {
	select {
	case u.poke <- struct{}{}:
	default:
	}
}

var errNotRegistered = errors.New("node is not registered yet")

// Ready returns nil once the Node is known and the latest pass went well.
func (u *Updater) Ready() error {
	if err := u.ok.Load(); err != nil {
		return *err
	}
	return errNotRegistered
}

// Node returns the Node as the API server last had it, or nil. The caller must
// not change it.
func (u *Updater) Node() *v1.Node { return u.node.Load() }

// Owner returns a reference to the Node, for the Lease. Its error satisfies
// apierrors.IsNotFound while there is no Node.
func (u *Updater) Owner(context.Context) (metav1.OwnerReference, error) {
	node := u.Node()
	if node == nil {
		return metav1.OwnerReference{}, apierrors.NewNotFound(v1.Resource("nodes"), u.cfg.NodeName)
	}
	return metav1.OwnerReference{
		APIVersion: v1.SchemeGroupVersion.String(), Kind: "Node", Name: node.Name, UID: node.UID,
	}, nil
}

// Run registers the Node and keeps its status posted until ctx ends, and
// returns the cause of that.
func (u *Updater) Run(ctx context.Context) error {
	var watcher sync.WaitGroup
	defer watcher.Wait()
	seen := make(chan sighting)
	watchCtx, stop := context.WithCancel(ctx)
	defer stop()
	watcher.Go(func() { u.watchNode(watchCtx, seen) })

	timer := time.NewTimer(u.backoff.step())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case s := <-seen:
			if !u.sighted(s) {
				continue
			}
		case <-u.poke:
			if u.Node() == nil {
				continue // the back-off decides when to try again
			}
		case <-timer.C:
		}
		timer.Reset(u.step(ctx))
	}
}

// sighted takes note of what the watch saw, and says whether it was news.
func (u *Updater) sighted(s sighting) bool {
	node := u.Node()
	switch {
	case node == nil:
		return false
	case s.node == nil:
		u.lost()
	case s.node.UID == node.UID && !newer(s.node.ResourceVersion, node.ResourceVersion):
		return false // the echo of a patch of ours
	default:
		u.node.Store(s.node)
	}
	return true
}

// lost forgets a Node that was deleted, so that it is registered again.
func (u *Updater) lost() {
	u.log.Warn("node is gone; registering it again", "node", u.cfg.NodeName)
	u.metrics.registrations.WithLabelValues("lost").Inc()
	u.node.Store(nil)
	u.report.last = time.Time{}
	u.result(errNotRegistered)
}

// step does what is due now, and returns how long to wait for the next step.
func (u *Updater) step(ctx context.Context) time.Duration {
	if u.Node() == nil {
		if err := u.register(ctx); err != nil {
			u.result(err)
			return u.backoff.step()
		}
		u.backoff = registerBackoff{}
		select {
		case u.known <- struct{}{}:
		default:
		}
	}
	wait, err := u.pass(ctx)
	if apierrors.IsNotFound(err) {
		u.lost()
		return u.backoff.step()
	}
	u.result(err)
	return wait
}

// result keeps the latest outcome for Ready, and logs it once per change.
func (u *Updater) result(err error) {
	u.ok.Store(&err)
	switch {
	case !news(&u.logged, err):
	case err != nil:
		u.log.Error("node status is not posted", "node", u.cfg.NodeName, "err", err)
	default:
		u.log.Info("node status is posted", "node", u.cfg.NodeName)
	}
}

// noteSetters logs once per change what setters failed. The rest of the status
// is posted all the same.
func (u *Updater) noteSetters(err error) {
	if news(&u.settersLogged, err) && err != nil {
		u.log.Warn("part of the node's status could not be set", "node", u.cfg.NodeName, "err", err)
	}
}

// news says whether err reads differently from the one noted last, and notes it.
func news(noted *string, err error) bool {
	text := "ok"
	if err != nil {
		text = err.Error()
	}
	changed := text != *noted
	*noted = text
	return changed
}

func (u *Updater) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*u.cfg.Timeout)
	defer cancel()
	facts := u.cfg.Facts()
	if facts.Snapshot.Time.IsZero() {
		return errNoFacts
	}
	if !u.cfg.Register {
		node, err := u.cfg.Nodes.Get(ctx, u.cfg.NodeName)
		if err != nil {
			return fmt.Errorf("get node %s: %w", u.cfg.NodeName, err)
		}
		u.cfg.Adopt(node)
		u.node.Store(node)
		return nil
	}
	initial, err := InitialNode(ctx, &u.cfg, &facts, time.Now())
	u.noteSetters(err)
	node, existed, err := register(ctx, &u.cfg, initial)
	if err != nil {
		u.metrics.registrations.WithLabelValues("error").Inc()
		return err
	}
	how := "created"
	if existed {
		how = "adopted"
		u.cfg.Adopt(node)
	}
	u.metrics.registrations.WithLabelValues(how).Inc()
	u.log.Info("node is registered", "node", node.Name, "how", how, "uid", types.UID(node.UID))
	u.node.Store(node)
	return nil
}

// pass runs the pipeline over the last known Node and posts the difference if
// it is time to. After a failure it asks the API server for the Node and tries
// again.
func (u *Updater) pass(ctx context.Context) (wait time.Duration, err error) {
	for attempt := range updateAttempts {
		if attempt > 0 {
			var node *v1.Node
			if node, err = u.get(ctx); err != nil {
				if apierrors.IsNotFound(err) || ctx.Err() != nil {
					return 0, err
				}
				u.cfg.OnFailure()
				continue
			}
			u.node.Store(node)
		}
		if wait, err = u.try(ctx); err == nil || ctx.Err() != nil || apierrors.IsNotFound(err) {
			return wait, err
		}
		if attempt > 0 {
			u.cfg.OnFailure()
		}
	}
	return u.cfg.UpdateFrequency, fmt.Errorf("update node status exceeds retry count: %w", err)
}

func (u *Updater) get(ctx context.Context) (*v1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, u.cfg.Timeout)
	defer cancel()
	node, err := u.cfg.Nodes.Get(ctx, u.cfg.NodeName)
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", u.cfg.NodeName, err)
	}
	return node, nil
}

// try makes one attempt to post.
func (u *Updater) try(ctx context.Context) (wait time.Duration, err error) {
	now := time.Now()
	facts := u.cfg.Facts()
	old := u.Node()
	next := old.DeepCopy()
	labels := requireLabels(next)
	u.noteSetters(apply(ctx, next, setters(&u.cfg, &facts, now)))
	changed := statusChanged(&old.Status, &next.Status) || labels

	var reason string
	switch {
	case changed:
		if wait = u.pace.wait(now); wait > 0 {
			if !u.held {
				u.held = true
				u.metrics.held.Inc()
			}
			return wait, nil
		}
		reason = "changed"
	case u.report.due(now):
		reason = "period"
	default:
		u.held = false
		return min(u.cfg.UpdateFrequency, u.report.left(now)), nil
	}
	u.held = false
	if err := u.post(ctx, old, next, reason); err != nil {
		return 0, err
	}
	if changed {
		u.pace.post(now)
	}
	u.report.posting(changed, rand.Float64())
	u.report.last = now
	return u.cfg.UpdateFrequency, nil
}

func (u *Updater) post(ctx context.Context, old, next *v1.Node, reason string) error {
	patch, err := Patch(old, next)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, u.cfg.Timeout)
	defer cancel()
	start := time.Now()
	node, err := u.cfg.Nodes.PatchStatus(ctx, u.cfg.NodeName, patch)
	u.metrics.patched(reason, len(patch), time.Since(start), err)
	if err != nil {
		return fmt.Errorf("patch status of node %s: %w", u.cfg.NodeName, err)
	}
	u.node.Store(node)
	u.log.Debug("patched node status", "node", u.cfg.NodeName, "reason", reason, "bytes", len(patch))
	return nil
}

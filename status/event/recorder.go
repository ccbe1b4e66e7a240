// Package event posts Events about a Node: what "kubectl describe node" lists, and what
// monitoring counts. The recorder of client-go would bring an OpenAPI library into the
// binary.
package event

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/internal/once"
)

// Config is what a Recorder is made from.
type Config struct {
	// Node returns a reference to the Node, with its UID: "kubectl describe node"
	// looks for that. It is called for each Event, and may wait.
	Node func(context.Context) (metav1.OwnerReference, error)
	// API is where Events are posted. Timeout bounds each call to it.
	API     API
	Timeout time.Duration
	// Component is the source that the Events show.
	Component string
	// OnFailure is called when a post failed: the connection may be half dead.
	OnFailure func()
	// Alive is called with the time within which it will be called again, unless Run
	// is stuck; 0 stands for however long. That the API server is away does not matter.
	Alive func(within time.Duration)

	// Logger is silent and Registerer is not used if nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Recorder posts Events about the Node: one object for each kind of occurrence, with
// a count.
type Recorder struct {
	cfg     Config
	log     *slog.Logger
	metrics metrics
	queue   chan occurrence

	// Owned by Run.
	correlator correlator
	last       time.Time // in the name of the latest object
}

// occurrence is something that happened once.
type occurrence struct {
	kind    string // "Normal" or "Warning"
	reason  string
	message string
	at      time.Time
}

// queueLength is how many Events wait for an API server that is away. Later ones are
// dropped: the Node's conditions show the present state anyway.
const queueLength = 64

// namespace is where Events about objects without a namespace go.
const namespace = metav1.NamespaceDefault

// New makes a Recorder. It starts no goroutine and sends nothing.
func New(cfg Config) (*Recorder, error) {
	switch {
	case cfg.Node == nil || cfg.API == nil:
		return nil, errors.New("node and API must be given")
	case cfg.Timeout <= 0:
		return nil, fmt.Errorf("timeout %s is not positive", cfg.Timeout)
	}
	if cfg.OnFailure == nil {
		cfg.OnFailure = func() {}
	}
	if cfg.Alive == nil {
		cfg.Alive = func(time.Duration) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Logger = once.Logger(cfg.Logger)
	return &Recorder{
		cfg: cfg, log: cfg.Logger, metrics: newMetrics(cfg.Registerer),
		queue: make(chan occurrence, queueLength), correlator: correlator{},
	}, nil
}

// Record queues an Event about what has just happened. It never blocks; if too many
// are queued already, the Event is dropped and counted.
func (r *Recorder) Record(kind, reason, message string) {
	select {
	case r.queue <- occurrence{kind, reason, message, time.Now()}:
	default:
		r.metrics.dropped.WithLabelValues("queue").Inc()
	}
}

// lastWord is how long after the end of Run's context a call may still take.
const lastWord = time.Second

// Run posts what is recorded until ctx ends, and returns the cause of that. A call that is
// under way then has a second to come to an end: the API server may have the Event already,
// and it is the last that this process says. What still waits is lost.
func (r *Recorder) Run(ctx context.Context) error {
	for {
		r.cfg.Alive(0)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case o := <-r.queue:
			r.deliver(ctx, o)
		}
	}
}

// deliver posts one occurrence, and tries until it is posted or refused.
func (r *Recorder) deliver(ctx context.Context, o occurrence) {
	// The objects' names hold the time. A clock that was set back is believed.
	if !o.at.After(r.last) && r.last.Sub(o.at) < time.Second {
		o.at = r.last.Add(1)
	}
	r.last = o.at
	s, ok := r.correlator.observe(o)
	if !ok {
		r.metrics.dropped.WithLabelValues("rate").Inc()
		return
	}
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		err := r.post(ctx, s)
		if err != nil && ctx.Err() != nil {
			return
		}
		r.note(err)
		if err == nil {
			r.metrics.posted.Inc()
			return
		}
		if refused(err) {
			r.correlator.forget(s)
			r.metrics.dropped.WithLabelValues("refused").Inc()
			return
		}
		r.cfg.OnFailure()
		pause := max(wait, asked(err))
		r.alive(pause)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// refused reports whether it is of no use to send the same again.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err)
}

// asked returns the Retry-After of the API server's answer, 0 if it has none: at most a
// minute, so that one wrong answer does not silence a node.
func asked(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return min(time.Duration(seconds)*time.Second, time.Minute)
}

// note logs errors once per change.
func (r *Recorder) note(err error) {
	const key = "events"
	if err != nil {
		r.log.Warn("event is not posted", once.Failure, key, "err", err)
		return
	}
	r.log.Info("events are posted", once.Recovery, key)
}

// post makes one attempt: it counts up the Event that exists, or creates one.
func (r *Recorder) post(ctx context.Context, s *series) error {
	r.cfg.Alive(0) // the Node may not be known for long
	ref, err := r.cfg.Node(ctx)
	if err != nil {
		return fmt.Errorf("post event %s: %w", s.reason, err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	r.alive(0)
	ctx, cancel := outlive(ctx, r.cfg.Timeout)
	defer cancel()
	if s.name != "" && s.node == ref.UID {
		err := r.cfg.API.Patch(ctx, namespace, s.name, s.patch())
		switch {
		case apierrors.IsNotFound(err): // it has expired
		case apierrors.IsForbidden(err): // a credential may be allowed to create Events only
			r.log.Warn("events are created anew instead of counted up", once.Failure, "counting events", "err", err)
		default:
			return wrap("patch", s, ref.Name, err)
		}
		s.restart()
	}
	event := s.event(ref, r.cfg.Component)
	// An earlier attempt whose answer was lost has created it if the name exists.
	if err := r.cfg.API.Create(ctx, event); err != nil && !apierrors.IsAlreadyExists(err) {
		return wrap("create", s, ref.Name, err)
	}
	s.name, s.node = event.Name, ref.UID
	return nil
}

// outlive returns a context that ends after the timeout, or lastWord after ctx does.
func outlive(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-call.Done():
		case <-time.After(lastWord):
			cancel()
		}
	})
	return call, func() { stop(); cancel() }
}

// alive reports that Run goes on, and will after a pause and one attempt of two calls.
func (r *Recorder) alive(pause time.Duration) { r.cfg.Alive(pause + 2*r.cfg.Timeout + 10*time.Second) }

func wrap(verb string, s *series, node string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s event %s of node %s: %w", verb, s.reason, node, err)
}

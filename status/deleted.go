package status

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	errDeleted  = gone("node was deleted; restart nodeprobe to register it again")
	errLost     = gone("node was deleted; it must be registered again by whatever runs it")
	errReplaced = gone("node was deleted, and created again by another client")
)

// gone returns an error that satisfies apierrors.IsNotFound.
func gone(text string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Message: text,
	}}
}

// Gone returns an error, one that satisfies apierrors.IsNotFound, while the Node that
// was last known is deleted and no other has taken its place: nothing may be written
// in its name, nor may its Lease be renewed.
func (u *Updater) Gone() error {
	if err := u.gone.Load(); err != nil {
		return *err
	}
	return nil
}

// replaced reports whether the last known Node is one that another client made after
// the registered one was deleted. What registration owns may be missing there.
func (u *Updater) replaced() bool {
	node := u.Node()
	return node != nil && node.UID != u.uid
}

// settled is how long a Node must have existed for its deletion to start the back-off
// over. Otherwise it is one more round of a controller that deletes what others create.
const settled = time.Minute

// mayCreate reports whether registration creates the Node: once in a process, as with a
// kubelet. A Node is often cordoned and drained before it is deleted, and one that came
// back by itself would undo that.
func (u *Updater) mayCreate() bool { return u.cfg.Registrar != nil && u.uid == "" }

// lossOf returns the error about a Node that was deleted.
func (u *Updater) lossOf() error {
	if u.cfg.Registrar != nil {
		return errDeleted
	}
	return errLost
}

// lost forgets a Node that was deleted. Another is not looked for before the back-off
// is over.
func (u *Updater) lost(why error) {
	if time.Since(u.since) >= settled {
		u.backoff = registerBackoff{}
	}
	u.sure.shut()
	u.gone.Store(&why)
	u.metrics.deleted.Set(1)
	u.metrics.registrations.WithLabelValues("lost").Inc()
	u.node.Store(nil)
	u.doubt.Store(false)
	u.report.last = time.Time{}
	u.result(why)
	u.flushed.wake()
}

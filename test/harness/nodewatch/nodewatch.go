// Package nodewatch follows a Node at the API server and keeps each version of
// it with the time at which it was seen, so that a test can say when something
// became visible, and that something never did.
package nodewatch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// Sighting is a version of the Node, and when it was seen. Node is nil if it
// was deleted.
type Sighting struct {
	At   time.Time
	Node *corev1.Node
}

// History is what has been seen of a Node. Its methods are safe for concurrent
// use.
type History struct {
	name string

	mu      sync.Mutex // guards what follows
	all     []Sighting
	err     error
	changed chan struct{} // closed and replaced at each change
}

// FollowForTest watches the named Node, whether it exists or not, until the test ends.
func FollowForTest(t testing.TB, client kubernetes.Interface, name string) *History {
	t.Helper()
	selector := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
	list := must.Get(client.CoreV1().Nodes().List(t.Context(), selector))(t)
	selector.ResourceVersion = list.ResourceVersion
	watcher := must.Get(client.CoreV1().Nodes().Watch(t.Context(), selector))(t)
	h := &History{name: name, changed: make(chan struct{})}
	for i := range list.Items {
		h.add(&list.Items[i])
	}
	go h.follow(watcher) // ends with the test's context, which ends the watch
	return h
}

func (h *History) follow(watcher watch.Interface) {
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		node, _ := event.Object.(*corev1.Node)
		switch event.Type {
		case watch.Added, watch.Modified:
			h.add(node)
		case watch.Deleted:
			h.add(nil)
		case watch.Error:
			h.fail(apierrors.FromObject(event.Object))
			return
		}
	}
	h.fail(errors.New("the watch has ended"))
}

func (h *History) add(node *corev1.Node) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, Sighting{now, node})
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *History) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = fmt.Errorf("follow node %s: %w", h.name, err)
	close(h.changed)
	h.changed = make(chan struct{})
}

// All returns everything seen so far, oldest first.
func (h *History) All() []Sighting {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Sighting(nil), h.all...)
}

// Last returns the latest version of the Node, nil if there is none.
func (h *History) Last() *corev1.Node {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.all) == 0 {
		return nil
	}
	return h.all[len(h.all)-1].Node
}

// Wait returns the first sighting since the given time of a Node that match
// accepts, waiting for it until ctx ends.
func (h *History) Wait(ctx context.Context, since time.Time, match func(*corev1.Node) bool) (Sighting, error) {
	for {
		h.mu.Lock()
		changed, err := h.changed, h.err
		h.mu.Unlock()
		for _, s := range h.All() {
			if !s.At.Before(since) && s.Node != nil && match(s.Node) {
				return s, nil
			}
		}
		if err != nil {
			return Sighting{}, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Sighting{}, fmt.Errorf("wait for node %s: %w", h.name, context.Cause(ctx))
		}
	}
}

// Condition returns the Node's condition of a type; the zero value if it has
// none.
func Condition(node *corev1.Node, t corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// Has returns a match for Wait: the condition of that type has that status.
func Has(t corev1.NodeConditionType, status corev1.ConditionStatus) func(*corev1.Node) bool {
	return func(node *corev1.Node) bool { return Condition(node, t).Status == status }
}

package node

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// userSetter runs a user's setter where it can do no harm: on a copy of the Node, in a
// goroutine that may hang.
type userSetter struct {
	name   string // of the function
	set    Setter
	worker deadline.Worker[userResult]
}

// userResult is the Node as a user's setter left it; nil if it panicked.
type userResult struct {
	node *v1.Node
	err  error
}

func newUserSetters(setters []Setter) []userSetter {
	users := make([]userSetter, len(setters))
	for i, set := range setters {
		users[i].set = set
		users[i].name = runtime.FuncForPC(reflect.ValueOf(set).Pointer()).Name()
	}
	return users
}

// applyUsers runs the users' setters over node, and returns the errors. Each may take
// half of what is left of the timeout, or until ctx ends, so that one that hangs leaves
// time for the others, and all of them together take no longer than that.
func (p *pass) applyUsers(ctx context.Context, node *v1.Node) (errs []error) {
	end := time.Now().Add(p.cfg.Timeout)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		end = deadline
	}
	for i := range p.users {
		if ctx.Err() != nil {
			break // nothing is posted any more
		}
		if err := p.users[i].apply(ctx, node, time.Until(end)/2); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// apply runs the setter over a copy of node, which replaces node if it is ready in time.
func (u *userSetter) apply(ctx context.Context, node *v1.Node, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	detached := detach(node)
	result, err := u.worker.Do(timeout, "setter "+u.name, func() userResult { return u.call(ctx, detached) })
	if err != nil {
		return err
	}
	if result.node != nil {
		*node = *result.node
	}
	return result.err
}

func (u *userSetter) call(ctx context.Context, node *v1.Node) (result userResult) {
	defer func() {
		if p := recover(); p != nil {
			result = userResult{err: fmt.Errorf("setter %s panicked: %v", u.name, p)}
		}
	}()
	err := u.set(ctx, node)
	return userResult{node, err}
}

// detach returns a copy of a Node that shares nothing with the facts and the
// configuration, which outlive the pass.
func detach(node *v1.Node) *v1.Node {
	node = node.DeepCopy()
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	return node
}

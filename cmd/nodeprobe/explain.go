package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/nodeprobe/nodeprobe/heartbeat"
	"github.com/nodeprobe/nodeprobe/status"
)

// explainer puts what the API server refuses into words that an operator can act
// on.
type explainer struct {
	node   string // whose client it is
	origin string // of the credentials
}

// explained is an error in other words.
type explained struct {
	text string
	err  error
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.err }

// explain returns the error of a request in those words. Access is what it takes:
// a verb and a resource as in a Role.
func (e explainer) explain(access string, err error) error {
	if err == nil {
		return nil
	}
	text := steady(err.Error())
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		text = "the server is not one that the CA of " + e.origin + " vouches for: " + text
	}
	switch {
	case apierrors.IsForbidden(err):
		text = e.forbidden(access, text)
	case apierrors.IsInvalid(err) && strings.Contains(text, "denied request"): // by a policy that gives no reason
		text = "not admitted: " + text
	case apierrors.IsUnauthorized(err):
		text = "the credentials of " + e.origin + " are refused, or have expired: " + text
	case errors.Is(err, context.DeadlineExceeded):
		text = "no answer in time: " + text
	case errors.Is(err, net.ErrClosed): // see reconnect
		text = "given up after no answer in time to another request over the same connection: " + text
	}
	if text == err.Error() {
		return err
	}
	return &explained{text, err}
}

// requester is the node that the API server takes us for, where it says so.
var requester = regexp.MustCompile(`(?:User "system:node:|\bnode ["'])([^"']+)["']`)

func (e explainer) forbidden(access, text string) string {
	other := requester.FindStringSubmatch(text)
	switch {
	case other != nil && other[1] != e.node:
		return fmt.Sprintf("the credentials of %s are those of node %s, and this is node %s (see --hostname-override): %s", e.origin, other[1], e.node, text)
	case strings.Contains(text, "cannot"):
		return fmt.Sprintf("missing permission: %s (a kubelet's identity has it: user system:node:%s in group system:nodes; or bind a role that has it to this user): %s", access, e.node, text)
	}
	return "not admitted: " + text // not by who we are, but by what we ask for
}

// steadiers take out of an error what is another text at each retry, since the
// writers log an error once for as long as it reads the same.
var steadiers = []struct {
	varies *regexp.Regexp
	steady string
}{
	{regexp.MustCompile(`current time \S+ is`), "the time is"}, // of a certificate that has expired
	{regexp.MustCompile(`(stream ID |LastStreamID=)\d+`), "${1}N"},
	{regexp.MustCompile(`read udp \S+->`), "read udp "}, // our port, asking for a name
}

func steady(text string) string {
	for _, s := range steadiers {
		text = s.varies.ReplaceAllString(text, s.steady)
	}
	return text
}

type clearNodes struct {
	nodes status.Nodes
	explainer
}

func (n clearNodes) Get(ctx context.Context, name string) (*v1.Node, error) {
	node, err := n.nodes.Get(ctx, name)
	return node, n.explain("get nodes", err)
}

func (n clearNodes) Create(ctx context.Context, node *v1.Node) (*v1.Node, error) {
	created, err := n.nodes.Create(ctx, node)
	return created, n.explain("create nodes", err)
}

func (n clearNodes) PatchStatus(ctx context.Context, name string, patch []byte) (*v1.Node, error) {
	node, err := n.nodes.PatchStatus(ctx, name, patch)
	return node, n.explain("patch nodes/status", err)
}

func (n clearNodes) Watch(ctx context.Context, name, version string, limit time.Duration) (apiwatch.Interface, error) {
	w, err := n.nodes.Watch(ctx, name, version, limit)
	return w, n.explain("watch nodes", err)
}

type clearEvents struct {
	events status.Events
	explainer
}

func (e clearEvents) Create(ctx context.Context, event *v1.Event) error {
	return e.explain("create events in namespace "+event.Namespace, e.events.Create(ctx, event))
}

func (e clearEvents) Patch(ctx context.Context, namespace, name string, patch []byte) error {
	return e.explain("patch events in namespace "+namespace, e.events.Patch(ctx, namespace, name, patch))
}

type clearLeases struct {
	leases heartbeat.Leases
	explainer
}

func (l clearLeases) Get(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	lease, err := l.leases.Get(ctx, name)
	return lease, l.explain("get leases"+inLeases, err)
}

func (l clearLeases) Create(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	created, err := l.leases.Create(ctx, lease)
	return created, l.explain("create leases"+inLeases, err)
}

func (l clearLeases) Update(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	updated, err := l.leases.Update(ctx, lease)
	return updated, l.explain("update leases"+inLeases, err)
}

const inLeases = ".coordination.k8s.io in namespace " + heartbeat.Namespace

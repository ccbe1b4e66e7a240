package apiclient

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
	"github.com/nodeprobe/nodeprobe/status/event"
)

// errorHints adds to what the API server refuses what an operator can do about it.
type errorHints struct {
	node   string // whose client it is
	origin string // of the credentials
}

// hinted is an error in other words.
type hinted struct {
	text string
	err  error
}

func (e *hinted) Error() string { return e.text }
func (e *hinted) Unwrap() error { return e.err }

// explain returns the error of a request with its hint. Access is what the request
// needs: a verb and a resource, as in a Role.
func (e errorHints) explain(access string, err error) error {
	if err == nil {
		return nil
	}
	text := steady(err.Error())
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		text = "the server's certificate is not signed by the CA of " + e.origin + ": " + text
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
		text = "connection closed after another request over it got no answer in time: " + text
	}
	if text == err.Error() {
		return err
	}
	return &hinted{text, err}
}

// requester matches the node that the API server takes us for, where it names one.
var requester = regexp.MustCompile(`(?:User "system:node:|\bnode ["'])([^"']+)["']`)

func (e errorHints) forbidden(access, text string) string {
	other := requester.FindStringSubmatch(text)
	switch {
	case other != nil && other[1] != e.node:
		return fmt.Sprintf("the credentials of %s are those of node %s, and this is node %s (see --hostname-override): %s", e.origin, other[1], e.node, text)
	case strings.Contains(text, "cannot"):
		return fmt.Sprintf("missing permission: %s (a kubelet's identity has it: user system:node:%s in group system:nodes; or bind a role that has it to this user): %s", access, e.node, text)
	}
	return "not admitted: " + text // not by who we are, but by what we ask for
}

// steadiers remove from an error what differs at each retry: an error is logged once
// for as long as it reads the same.
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

type hintingNodes struct {
	nodes status.Nodes
	errorHints
}

func (n hintingNodes) Get(ctx context.Context, name string) (*v1.Node, error) {
	node, err := n.nodes.Get(ctx, name)
	return node, n.explain("get nodes", err)
}

func (n hintingNodes) Create(ctx context.Context, node *v1.Node) (*v1.Node, error) {
	created, err := n.nodes.Create(ctx, node)
	return created, n.explain("create nodes", err)
}

func (n hintingNodes) PatchStatus(ctx context.Context, name string, patch []byte) (*v1.Node, error) {
	node, err := n.nodes.PatchStatus(ctx, name, patch)
	return node, n.explain("patch nodes/status", err)
}

func (n hintingNodes) Watch(ctx context.Context, name, version string, limit time.Duration) (apiwatch.Interface, error) {
	w, err := n.nodes.Watch(ctx, name, version, limit)
	return w, n.explain("watch nodes", err)
}

type hintingEvents struct {
	events event.API
	errorHints
}

func (e hintingEvents) Create(ctx context.Context, event *v1.Event) error {
	return e.explain("create events in namespace "+event.Namespace, e.events.Create(ctx, event))
}

func (e hintingEvents) Patch(ctx context.Context, namespace, name string, patch []byte) error {
	return e.explain("patch events in namespace "+namespace, e.events.Patch(ctx, namespace, name, patch))
}

type hintingLeases struct {
	leases heartbeat.Leases
	errorHints
}

func (l hintingLeases) Get(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	lease, err := l.leases.Get(ctx, name)
	return lease, l.explain("get leases"+inLeases, err)
}

func (l hintingLeases) Create(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	created, err := l.leases.Create(ctx, lease)
	return created, l.explain("create leases"+inLeases, err)
}

func (l hintingLeases) Update(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	updated, err := l.leases.Update(ctx, lease)
	return updated, l.explain("update leases"+inLeases, err)
}

const inLeases = ".coordination.k8s.io in namespace " + heartbeat.Namespace

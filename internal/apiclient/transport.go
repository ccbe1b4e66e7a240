package apiclient

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// transport passes requests on, and rejects answers that cannot be the API server's.
type transport struct {
	next   http.RoundTripper
	silent *atomic.Bool // set when a request got no answer in time
}

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			t.silent.Store(true)
		}
		return nil, portless(err)
	}
	if err := foreignAnswer(resp); err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// WrappedRoundTripper leads reconnect to the connections.
func (t transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// portless removes our own port from the network's errors. It differs at each retry,
// and an error is logged once for as long as it reads the same.
func portless(err error) error {
	op, ok := err.(*net.OpError) //nolint:errorlint // where it is wrapped, so is its text
	if !ok {
		return err
	}
	other := *op // all requests over a connection share its error
	other.Source = nil
	return &other
}

// foreignAnswer returns an error for an answer that the API server never gives: a
// redirect, which would send our token elsewhere and turn a write into a GET;
// something other than an object; a 404 that is not about an object, and so no
// evidence that the Node was deleted.
func foreignAnswer(resp *http.Response) error {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")) // what is none is ""
	var what string
	switch code := resp.StatusCode; {
	case code >= 300 && code < 400:
		what = "a redirect to " + resp.Header.Get("Location")
	case kind == runtime.ContentTypeJSON, kind == runtime.ContentTypeProtobuf, kind == "":
		return nil
	case kind == "text/html":
		what = "a page of HTML"
	case code < 300, code == http.StatusNotFound:
		what = "of type " + kind
	default: // an error in plain text, as the API server writes some
		return nil
	}
	status := metav1.Status{ // without reason and code: they would mean something
		Status:  metav1.StatusFailure,
		Message: fmt.Sprintf("the answer is %s, with status %d: not the API server's but, for example, a proxy's; check the server's address", what, resp.StatusCode),
	}
	if seconds, err := strconv.ParseInt(resp.Header.Get("Retry-After"), 10, 32); err == nil && resp.StatusCode >= 400 {
		status.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(seconds)}
	}
	return &apierrors.StatusError{ErrStatus: status}
}

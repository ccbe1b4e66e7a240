package apitest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Play runs an Updater in a synctest bubble until act returns. It checks that run then
// ends at once with the cause, without another call and without logging an error; the
// bubble checks that no goroutine is left.
func Play(t *testing.T, api *API, log *Log, run func(context.Context) error, act func()) {
	t.Helper()
	cause := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	act()
	synctest.Wait()
	select {
	case err := <-done:
		t.Fatalf("Run returned early: %v", err)
	default:
	}
	api.Take()
	cancel(cause)
	stopped := time.Now()
	if err := <-done; !errors.Is(err, cause) {
		t.Errorf("Run returned %v, want the cause %v", err, cause)
	}
	if late := time.Since(stopped); late > 0 {
		t.Errorf("Run returned %v after the cancellation", late)
	}
	for _, c := range api.Take() {
		if c.At.After(stopped) {
			t.Errorf("%s after the cancellation", c.Verb)
		}
	}
	if lines := log.With("cancel", "stop"); len(lines) > 0 {
		t.Errorf("the end was logged as an error: %q", lines)
	}
}

// Log keeps what is logged.
type Log struct {
	mu    sync.Mutex
	lines []string
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, line, _ := strings.Cut(strings.TrimSpace(string(p)), " ") // without the time
	l.lines = append(l.lines, line)
	return len(p), nil
}

// With returns the lines since the last call that hold any of the words.
func (l *Log) With(words ...string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		for _, word := range words {
			if strings.Contains(line, word) {
				found = append(found, line)
				break
			}
		}
	}
	l.lines = nil
	return found
}

// Events keeps the reasons of the Events that an Updater records.
type Events struct {
	mu      sync.Mutex
	reasons []string
}

// Record records an Event.
func (e *Events) Record(_, reason, _ string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reasons = append(e.reasons, reason)
}

// Take returns the reasons since the last call.
func (e *Events) Take() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	reasons := e.reasons
	e.reasons = nil
	return reasons
}

// Diff reports how got differs from want.
func Diff(t *testing.T, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if d := cmp.Diff(want, got, options...); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// ErrorText returns the text of an error, "" for none.
func ErrorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// At is a time after Epoch.
func At(seconds int) metav1.Time {
	return metav1.NewTime(Epoch.Add(time.Duration(seconds) * time.Second))
}

// SameTimes compares times by the instant.
func SameTimes() cmp.Option {
	return cmp.Comparer(func(a, b metav1.Time) bool { return a.Equal(&b) })
}

// Resources returns a list of resources from its form in the API; nil for nil.
func Resources(pairs map[string]string) v1.ResourceList {
	if pairs == nil {
		return nil
	}
	list := v1.ResourceList{}
	for name, text := range pairs {
		list[v1.ResourceName(name)] = resource.MustParse(text)
	}
	return list
}

// Addresses returns addresses of a Node: NodeName is a hostname.
func Addresses(list ...string) []v1.NodeAddress {
	var addrs []v1.NodeAddress
	for _, address := range list {
		kind := v1.NodeInternalIP
		if address == NodeName {
			kind = v1.NodeHostName
		}
		addrs = append(addrs, v1.NodeAddress{Type: kind, Address: address})
	}
	return addrs
}

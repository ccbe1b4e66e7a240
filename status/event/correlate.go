package event

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeprobe/nodeprobe/internal/printable"
)

// The bounds are those of client-go's correlator, so that the load on the API server is
// no more than a kubelet's. Except that they hold for each reason by itself: a storm of
// one must not hide the others.
const (
	burst        = 25
	refill       = 5 * time.Minute
	maxSimilar   = 10 // different messages of one reason in
	similarFor   = 10 * time.Minute
	seriesExpire = time.Hour // the API server forgets Events by then
	combined     = "(combined from similar events): "
)

// maxMessage is what events.k8s.io takes, in bytes. The policy in deploy/identity
// enforces the same bound.
const maxMessage = 1024

// correlator turns occurrences into series: a repetition counts up an existing series,
// and what happens too often is dropped. It has an entry per reason.
type correlator map[reasonKey]*reasonState

type reasonKey struct{ kind, reason string }

type reasonState struct {
	tokens int
	filled time.Time // when tokens was right
	series map[string]*series
	began  time.Time // of the window in which different messages are counted
	fresh  int       // different messages in it
}

// series is one Event object, and how often it happened.
type series struct {
	kind, reason, message string
	key                   string // by which it is found in its reason's state
	first, last           time.Time
	count                 int32

	name string    // of the object; "" before there is one
	node types.UID // that it is about
}

// observe returns the series that o belongs to, counted up, or false if there have been
// too many.
func (c correlator) observe(o occurrence) (*series, bool) {
	key := reasonKey{o.kind, o.reason}
	state := c[key]
	if state == nil {
		state = &reasonState{tokens: burst, filled: o.at, series: map[string]*series{}}
		c[key] = state
	}
	if !state.pay(o.at) {
		return nil, false
	}
	for name, s := range state.series {
		if o.at.Sub(s.last) >= seriesExpire {
			delete(state.series, name)
		}
	}
	name, message := state.name(o)
	s := state.series[name]
	if s == nil {
		s = &series{kind: o.kind, reason: o.reason, key: name, first: o.at}
		state.series[name] = s
	}
	s.message, s.last = oneLine(message), o.at
	s.count++
	return s, true
}

// oneLine returns text as one line of printable characters, of at most maxMessage bytes.
func oneLine(text string) string {
	text = printable.Line(text, -1)
	if len(text) <= maxMessage {
		return text
	}
	const more = "…"
	end := maxMessage - len(more)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + more
}

// forget drops a series that the API server refused.
func (c correlator) forget(s *series) {
	if state := c[reasonKey{s.kind, s.reason}]; state != nil {
		delete(state.series, s.key)
	}
}

// pay takes a token, and reports whether there was one.
func (r *reasonState) pay(now time.Time) bool {
	if earned := int(now.Sub(r.filled) / refill); earned > 0 {
		r.tokens = min(burst, r.tokens+earned)
		r.filled = r.filled.Add(time.Duration(earned) * refill)
	}
	if r.tokens == 0 {
		return false
	}
	r.tokens--
	return true
}

// name returns the key of the series of o, and its message: too many different
// messages go into one series, which shows the latest.
func (r *reasonState) name(o occurrence) (name, message string) {
	if _, known := r.series[o.message]; known {
		return o.message, o.message
	}
	if o.at.Sub(r.began) >= similarFor {
		r.began, r.fresh = o.at, 0
	}
	if r.fresh++; r.fresh > maxSimilar {
		return combined, combined + o.message
	}
	return o.message, o.message
}

// restart makes the series a new object, which starts with the latest occurrence.
func (s *series) restart() { s.name, s.first, s.count = "", s.last, 1 }

// event returns the object to create.
func (s *series) event(node metav1.OwnerReference, component string) *v1.Event {
	return &v1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      fmt.Sprintf("%.236s.%x", node.Name, s.last.UnixNano()),
			Namespace: namespace,
		},
		InvolvedObject: v1.ObjectReference{
			APIVersion: node.APIVersion, Kind: node.Kind, Name: node.Name, UID: node.UID,
		},
		Type: s.kind, Reason: s.reason, Message: s.message,
		Source:              v1.EventSource{Component: component, Host: node.Name},
		ReportingController: component, ReportingInstance: node.Name,
		FirstTimestamp: metav1.NewTime(s.first), LastTimestamp: metav1.NewTime(s.last),
		Count: s.count,
	}
}

// patch returns the patch that brings the existing object up to date.
func (s *series) patch() []byte {
	patch, err := json.Marshal(map[string]any{
		"count": s.count, "lastTimestamp": metav1.NewTime(s.last), "message": s.message,
	})
	if err != nil {
		panic(err) // a number, a time and a string
	}
	return patch
}

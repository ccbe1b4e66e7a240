package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// Logged returns the records of the agent's log with the message; all of them for "".
func Logged(t testing.TB, a *agent.Agent, msg string) []agent.Record {
	t.Helper()
	return slices.DeleteFunc(must.Get(a.Log())(t), func(r agent.Record) bool { return msg != "" && r.Msg != msg })
}

// WaitLogged waits until the agent has logged the message more than n times, and
// returns the latest record of it.
func WaitLogged(t testing.TB, a *agent.Agent, msg string, n int) agent.Record {
	t.Helper()
	var found []agent.Record
	Until(t, fmt.Sprintf("%q is logged", msg), func() bool {
		found = Logged(t, a, msg)
		return len(found) > n
	})
	return found[len(found)-1]
}

// WaitComplaint waits until the message is logged with a text in its error, and
// returns the record.
func WaitComplaint(t testing.TB, a *agent.Agent, msg, text string) (found agent.Record) {
	t.Helper()
	Eventually(t, msg+": "+text, func() error {
		all := Logged(t, a, msg)
		i := slices.IndexFunc(all, func(r agent.Record) bool { return strings.Contains(r.Err, text) })
		if i < 0 {
			return fmt.Errorf("logged %+v", all)
		}
		found = all[i]
		return nil
	})
	return found
}

// CheckOnce wants no complaint twice.
func CheckOnce(t testing.TB, a *agent.Agent) {
	t.Helper()
	count := map[string]int{}
	for _, r := range Logged(t, a, "") {
		if key := r.Msg + ": " + r.Err; r.Bad() {
			if count[key]++; count[key] == 2 {
				t.Errorf("logged more than once: %s", r.Line)
			}
		}
	}
}

// WaitUnready waits until /readyz names what is wrong.
func WaitUnready(t testing.TB, a *agent.Agent, text string) {
	t.Helper()
	Eventually(t, "/readyz says "+text, func() error {
		code, body, err := a.Get(context.Background(), "/readyz")
		if err == nil && (code != 503 || !strings.Contains(string(body), text)) {
			err = fmt.Errorf("%d: %s", code, body)
		}
		return err
	})
}

// CheckAlive wants the agent not to have ended.
func CheckAlive(t testing.TB, a *agent.Agent) {
	t.Helper()
	select {
	case <-a.Exited():
		t.Error("nodeprobe has ended")
	default:
	}
}

// Audit is what the API server has recorded of requests.
type Audit []controlplane.AuditEvent

// Requests returns what a program has asked the API server for since a time, by its
// user agent: a kubelet and nodeprobe are the same user.
func Requests(t testing.TB, cp *controlplane.ControlPlane, program string, since time.Time) Audit {
	t.Helper()
	return Audit(must.Get(cp.AuditEvents())(t)).where(func(e *controlplane.AuditEvent) bool {
		return strings.HasPrefix(e.UserAgent, program+"/") && !e.RequestReceivedTimestamp.Before(since)
	})
}

// Writes is Requests without those that only look.
func Writes(t testing.TB, cp *controlplane.ControlPlane, program string, since time.Time) Audit {
	t.Helper()
	return Requests(t, cp, program, since).where(func(e *controlplane.AuditEvent) bool { return !e.Reads() })
}

// Done is what the API server has done of that: it may give up on a request, which
// is then sent once more.
func (a Audit) Done() Audit {
	return a.where(func(e *controlplane.AuditEvent) bool { return e.ResponseStatus.Code/100 == 2 })
}

// Of returns those of one kind, such as "patch nodes/status".
func (a Audit) Of(request string) Audit {
	return a.where(func(e *controlplane.AuditEvent) bool { return e.Request() == request })
}

// About returns those about objects of a resource.
func (a Audit) About(resource string) Audit {
	return a.where(func(e *controlplane.AuditEvent) bool { return e.ObjectRef.Resource == resource })
}

func (a Audit) where(so func(*controlplane.AuditEvent) bool) (found Audit) {
	for i := range a {
		if so(&a[i]) {
			found = append(found, a[i])
		}
	}
	return found
}

// OnlyConditions returns what else than conditions with these prefixes a patch of a
// Node is about.
func OnlyConditions(patch []byte, prefixes ...string) error {
	var body map[string]map[string][]struct{ Type string }
	if err := json.Unmarshal(patch, &body); err != nil {
		return err
	}
	conditions := body["status"]["conditions"]
	if len(body) != 1 || len(body["status"]) != 1 || len(conditions) == 0 {
		return errors.New("it is not about conditions alone")
	}
	for _, c := range conditions {
		if !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(c.Type, prefix) }) {
			return fmt.Errorf("condition %s is not ours", c.Type)
		}
	}
	return nil
}

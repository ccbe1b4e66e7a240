package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
)

// conditionWords are the words of the kubelet's pressure conditions, and the reason of
// the Event. Scripts and controllers read them.
type conditionWords struct{ reason, message, event string }

var pressureWords = [pressure.NumConditions]map[v1.ConditionStatus]conditionWords{
	pressure.MemoryPressure: {
		v1.ConditionTrue:  {"KubeletHasInsufficientMemory", "kubelet has insufficient memory available", "NodeHasInsufficientMemory"},
		v1.ConditionFalse: {"KubeletHasSufficientMemory", "kubelet has sufficient memory available", "NodeHasSufficientMemory"},
	},
	pressure.DiskPressure: {
		v1.ConditionTrue:  {"KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"},
		v1.ConditionFalse: {"KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"},
	},
	pressure.PIDPressure: {
		v1.ConditionTrue:  {"KubeletHasInsufficientPID", "kubelet has insufficient PID available", "NodeHasInsufficientPID"},
		v1.ConditionFalse: {"KubeletHasSufficientPID", "kubelet has sufficient PID available", "NodeHasSufficientPID"},
	},
}

// unobserved are the words of a condition for which there has been no evidence yet.
// The kubelet's is False then.
var unobserved = conditionWords{reason: "SignalUnavailable", message: "the signals of this condition could not be read yet"}

// pressureCondition sets one of the three pressure conditions.
func pressureCondition(v *pressure.Verdict, now time.Time) Setter {
	return func(_ context.Context, node *v1.Node) error {
		conditionType, is := v1.NodeConditionType(v.Condition.String()), v1.ConditionStatus(v.Status.String())
		heartbeat := metav1.NewTime(now)
		cond := condition(node, conditionType)
		switch {
		case cond == nil:
			node.Status.Conditions = append(node.Status.Conditions, v1.NodeCondition{
				Type: conditionType, LastTransitionTime: heartbeat,
			})
			cond = condition(node, conditionType)
		case is == v1.ConditionUnknown, is == cond.Status:
			// The status on the Node stays, because there is evidence for it or none
			// against it. The kubelet does not mend the words of an unchanged condition
			// either.
			cond.LastHeartbeatTime = heartbeat
			return nil
		default:
			cond.LastTransitionTime = status.TransitionTime(v.Since, cond.LastTransitionTime, now)
		}
		words, ok := pressureWords[v.Condition][is]
		if !ok {
			words = unobserved
		}
		cond.Status, cond.Reason, cond.Message = is, words.reason, words.message
		cond.LastHeartbeatTime = heartbeat
		return nil
	}
}

// condition returns the last condition of a type, or nil.
func condition(node *v1.Node, t v1.NodeConditionType) *v1.NodeCondition {
	for i := len(node.Status.Conditions) - 1; i >= 0; i-- {
		if node.Status.Conditions[i].Type == t {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// firstCondition returns the first condition of a type, or nil.
func firstCondition(conditions []v1.NodeCondition, t v1.NodeConditionType) *v1.NodeCondition {
	for i := range conditions {
		if conditions[i].Type == t {
			return &conditions[i]
		}
	}
	return nil
}

// readiness is what Ready depends on, apart from the capacity that the Node has.
type readiness struct {
	runtime, network, storage error
	unhealthy                 error // this process cannot vouch for the node
	leaving                   error
	soft                      error // no reason to be not ready, but worth a warning
	since                     time.Time
}

// readiness asks everything that Ready depends on.
func (c *Content) readiness(facts *Facts) readiness {
	r := readiness{
		runtime: c.cfg.RuntimeErrors(), network: c.cfg.NetworkErrors(), storage: c.cfg.StorageErrors(),
		unhealthy: c.cfg.Healthy(), leaving: facts.Leaving, soft: c.cfg.SoftRequirements(),
	}
	if facts.Snapshot.Machine.NoCPUQuota {
		r.soft = errors.Join(errNoCPUQuota, r.soft)
	}
	return r
}

// errNoCPUQuota is the kubelet's soft requirement, in its words.
var errNoCPUQuota = errors.New("CPU hardcapping unsupported")

// err returns why the node is not ready, in the kubelet's order: a container runtime's
// own network comes before other networks.
func (r *readiness) err() error {
	return errors.Join(r.runtime, r.network, r.storage, r.unhealthy, r.leaving)
}

// health is whether the node is ready but for its capacity, as observed at each attempt
// to post, also at those that do not reach the API server. The zero health has seen
// nothing.
type health struct {
	ok    bool
	since time.Time
}

// observe takes what holds at now into account, and returns since when it has.
func (h *health) observe(ok bool, now time.Time) time.Time {
	if h.since.IsZero() || ok != h.ok {
		*h = health{ok, now}
	}
	return h.since
}

// readyCondition sets whether the node can take pods: nothing speaks against it, and its
// capacity is known.
func readyCondition(localStorage bool, r *readiness, now time.Time) Setter {
	return func(_ context.Context, node *v1.Node) error {
		ready := v1.NodeCondition{
			Type: v1.NodeReady, Status: v1.ConditionTrue,
			Reason: "KubeletReady", Message: "kubelet is posting ready status",
			LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
		}
		if problems := aggregate(r.err(), missingCapacity(node, localStorage)); problems != "" {
			ready.Status, ready.Reason, ready.Message = v1.ConditionFalse, "KubeletNotReady", problems
		}
		if r.soft != nil {
			ready.Message += ". WARNING: " + aggregate(r.soft) // as the kubelet puts it
		}
		// Unlike the pressure conditions, this one is replaced as a whole: its message
		// changes while its status stays. If there are two, it is the first: that is
		// the one that others read.
		existing := firstCondition(node.Status.Conditions, v1.NodeReady)
		if existing == nil {
			node.Status.Conditions = append(node.Status.Conditions, ready)
			return nil
		}
		if existing.Status == ready.Status {
			ready.LastTransitionTime = existing.LastTransitionTime
		} else {
			ready.LastTransitionTime = status.TransitionTime(r.since, existing.LastTransitionTime, now)
		}
		*existing = ready
		return nil
	}
}

func missingCapacity(node *v1.Node, localStorage bool) error {
	required := []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods}
	if localStorage {
		required = append(required, v1.ResourceEphemeralStorage)
	}
	var missing []string
	for _, name := range required {
		if _, ok := node.Status.Capacity[name]; !ok {
			missing = append(missing, string(name))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("missing node capacity for resources: %s", strings.Join(missing, ", "))
}

// aggregate joins errors as the kubelet does: joined ones taken apart, nil and
// repeated ones dropped, one bare, several as "[a, b]".
func aggregate(errs ...error) string {
	var texts []string
	var add func(err error)
	add = func(err error) {
		if err == nil {
			return
		}
		text := err.Error()
		// Any other error with several causes has words of its own.
		if tree, ok := err.(interface{ Unwrap() []error }); ok {
			if joined := errors.Join(tree.Unwrap()...); joined != nil && joined.Error() == text {
				for _, e := range tree.Unwrap() {
					add(e)
				}
				return
			}
		}
		if !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	for _, err := range errs {
		add(err)
	}
	if len(texts) > 1 {
		return "[" + strings.Join(texts, ", ") + "]"
	}
	return strings.Join(texts, "")
}

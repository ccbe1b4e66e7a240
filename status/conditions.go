package status

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultFieldManager is the field manager of our writes if no other is configured. It
// must be the part of the client's user agent before the slash.
const DefaultFieldManager = "nodeprobe"

// Prefix is the prefix of the default condition types.
const Prefix = "nodeprobe.dev/"

// BuiltIn are the condition types that a kubelet or a network plugin writes. They
// cannot be condition types of our own.
var BuiltIn = []v1.NodeConditionType{
	v1.NodeReady, v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure, v1.NodeNetworkUnavailable,
}

// Condition is a node condition of our own.
type Condition struct {
	Type   string
	Status v1.ConditionStatus
	// Reason is one CamelCase word. It and Message are posted when Status or Reason
	// changes, and otherwise stay as the Node has them.
	Reason, Message string
	// Since is when Status last changed; zero is now.
	Since time.Time
}

// Conditions is the content for a Node whose status a kubelet posts: conditions of our
// own and nothing else. Its patch is put together from them alone, so that no other part
// of the Node can get into it.
//
// Before the first Set nothing is posted or removed.
type Conditions struct {
	fieldManager string
	latest       atomic.Pointer[[]Condition]
}

// NewConditions returns Conditions without any set. The field manager must be the one
// under which the API server records our writes; "" is DefaultFieldManager.
func NewConditions(fieldManager string) *Conditions {
	return &Conditions{fieldManager: orDefault(fieldManager)}
}

// Set replaces the conditions. Those that are not among them any more are removed from
// the Node. The caller must not change the slice afterwards, and wakes the Updater if
// something is to be posted before the next regular pass. It is safe for concurrent use.
func (c *Conditions) Set(conditions []Condition) { c.latest.Store(&conditions) }

// Draft implements Content.
func (c *Conditions) Draft(_ context.Context, old *v1.Node, now time.Time, due bool) Draft {
	latest := c.latest.Load()
	if latest == nil {
		return Draft{}
	}
	diff := compareConditions(old, *latest, c.fieldManager, now)
	if len(diff.all) == 0 && !diff.changed() {
		return Draft{Err: diff.err}
	}
	return Draft{
		Changed: diff.changed(), Err: diff.err,
		Worse: slices.ContainsFunc(diff.updates, func(c setCondition) bool {
			existing := lastCondition(old, v1.NodeConditionType(c.Type))
			return c.Status == v1.ConditionTrue && (existing == nil || existing.Status != v1.ConditionTrue)
		}),
		Patch:  func() ([]byte, error) { return diff.patch(due) },
		Events: func() []Event { return diff.events },
	}
}

// SetConditions sets conditions of our own on a Node that is about to be posted, by the
// rules of Conditions: one that another client wrote is left alone, with an error. Those
// that the field manager wrote and that obsolete reports true for are removed, unless
// they are among the conditions. It returns the Events that the change is worth.
func SetConditions(node *v1.Node, conditions []Condition, fieldManager string, now time.Time, obsolete func(kind string) bool) ([]Event, error) {
	diff := compareConditions(node, conditions, orDefault(fieldManager), now)
	for i := range diff.all {
		entry := &diff.all[i]
		existing := lastCondition(node, v1.NodeConditionType(entry.Type))
		if existing == nil {
			node.Status.Conditions = append(node.Status.Conditions, v1.NodeCondition{Type: v1.NodeConditionType(entry.Type)})
			existing = &node.Status.Conditions[len(node.Status.Conditions)-1]
		}
		existing.LastHeartbeatTime = entry.LastHeartbeatTime
		if existing.Status != entry.Status || existing.Reason != entry.Reason {
			existing.Status, existing.Reason, existing.Message = entry.Status, entry.Reason, entry.Message
			existing.LastTransitionTime = entry.LastTransitionTime
		}
	}
	node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
		kind := string(c.Type)
		return slices.ContainsFunc(diff.drop, func(d dropCondition) bool { return d.Type == kind }) && obsolete(kind)
	})
	return diff.events, diff.err
}

// conditionDiff is how our conditions differ from what the Node has.
type conditionDiff struct {
	all, updates []setCondition  // of the patch: each of ours, and those that have changed
	drop         []dropCondition // of the patch: those to remove
	events       []Event
	err          error // why some were left out
}

// Condition entries of a patch. A patch of conditions is merged by type.
type (
	setCondition struct {
		Type               string             `json:"type"`
		Status             v1.ConditionStatus `json:"status"`
		Reason             string             `json:"reason"`
		Message            string             `json:"message"`
		LastHeartbeatTime  metav1.Time        `json:"lastHeartbeatTime"`
		LastTransitionTime metav1.Time        `json:"lastTransitionTime"`
	}
	dropCondition struct {
		Patch string `json:"$patch"`
		Type  string `json:"type"`
	}
)

// compareConditions compares our conditions with those of the Node. What somebody else
// wrote is left alone; what the field manager wrote and is not among them is dropped.
func compareConditions(node *v1.Node, conditions []Condition, fieldManager string, now time.Time) conditionDiff {
	var diff conditionDiff
	writers := conditionWriters(node)
	var foreign, builtIn []string
	for i := range conditions {
		c := &conditions[i]
		existing := lastCondition(node, v1.NodeConditionType(c.Type))
		writer := writers[c.Type]
		switch {
		case slices.Contains(BuiltIn, v1.NodeConditionType(c.Type)):
			builtIn = append(builtIn, c.Type)
		case existing != nil && writer != fieldManager && writer != "":
			foreign = append(foreign, fmt.Sprintf("condition %s was written by %s", c.Type, writer))
		default:
			diff.add(node.Name, c, existing, now)
		}
	}
	for i := range node.Status.Conditions {
		kind := string(node.Status.Conditions[i].Type)
		wanted := func(c Condition) bool { return c.Type == kind }
		if isOurs(kind, writers[kind], fieldManager) && !slices.ContainsFunc(conditions, wanted) {
			diff.drop = append(diff.drop, dropCondition{"delete", kind})
		}
	}
	if len(foreign) > 0 {
		diff.err = errors.New(strings.Join(foreign, "; ") + ": it is left alone; choose another type, or remove that condition")
	}
	if len(builtIn) > 0 {
		diff.err = errors.Join(diff.err, fmt.Errorf("condition %s is a kubelet's: choose another type", strings.Join(builtIn, ", ")))
	}
	return diff
}

// isOurs reports whether we posted a condition. The API server does not tell who wrote
// a Node that was created without a single label; then the type decides.
func isOurs(kind, writer, fieldManager string) bool {
	// A node that was in mode own has the kubelet's types from us.
	if slices.Contains(BuiltIn, v1.NodeConditionType(kind)) {
		return false
	}
	return writer == fieldManager || writer == "" && strings.HasPrefix(kind, Prefix)
}

func (d *conditionDiff) add(nodeName string, c *Condition, existing *v1.NodeCondition, now time.Time) {
	entry := setCondition{
		Type: c.Type, Status: c.Status, Reason: c.Reason, Message: line(c.Message, maxMessage),
		LastHeartbeatTime: metav1.NewTime(now),
	}
	var was v1.NodeCondition
	if existing != nil {
		was = *existing
	}
	entry.LastTransitionTime = was.LastTransitionTime
	if was.Status != entry.Status {
		entry.LastTransitionTime = TransitionTime(c.Since, was.LastTransitionTime, now)
	}
	d.all = append(d.all, entry)
	// The message of True holds a figure, which may be another one after a restart.
	if was.Status == entry.Status && was.Reason == entry.Reason {
		return
	}
	d.updates = append(d.updates, entry)
	if was.Status == entry.Status || was.Status == "" && entry.Status != v1.ConditionTrue {
		return // a condition that starts out well is worth no Event
	}
	kind := v1.EventTypeNormal
	if entry.Status == v1.ConditionTrue {
		kind = v1.EventTypeWarning
	}
	d.events = append(d.events, Event{kind, entry.Reason, fmt.Sprintf("Node %s condition %s is now %s: %s", nodeName, c.Type, entry.Status, c.Message)})
}

// changed reports whether there is anything that the API server does not have yet.
func (d *conditionDiff) changed() bool { return len(d.updates)+len(d.drop) > 0 }

// patch returns the body of the patch; all is whether it holds unchanged conditions too.
func (d *conditionDiff) patch(all bool) ([]byte, error) {
	set := d.updates
	if all {
		set = d.all
	}
	entries := make([]any, 0, len(set)+len(d.drop))
	for _, e := range set {
		entries = append(entries, e)
	}
	for _, e := range d.drop {
		entries = append(entries, e)
	}
	body := map[string]any{"status": map[string]any{"conditions": entries}}
	patch, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	return patch, nil
}

// Cleanup removes from a Node the conditions that Conditions posted under a field
// manager, whatever configuration they are from, and returns their types. An empty
// field manager is DefaultFieldManager.
func Cleanup(ctx context.Context, nodes Nodes, name, fieldManager string) (removed []string, err error) {
	node, err := nodes.Get(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}
	diff := compareConditions(node, nil, orDefault(fieldManager), time.Time{})
	if !diff.changed() {
		return nil, nil
	}
	patch, err := diff.patch(false)
	if err != nil {
		return nil, err
	}
	if _, err := nodes.PatchStatus(ctx, name, patch); err != nil {
		return nil, fmt.Errorf("patch status of node %s: %w", name, err)
	}
	for _, e := range diff.drop {
		removed = append(removed, e.Type)
	}
	slices.Sort(removed)
	return removed, nil
}

// conditionWriters returns the field manager that last wrote the status of each
// condition, by metadata.managedFields.
func conditionWriters(node *v1.Node) map[string]string {
	writers := map[string]string{}
	for _, entry := range node.ManagedFields {
		if entry.Subresource != "status" || entry.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Status struct {
				Conditions map[string]map[string]json.RawMessage `json:"f:conditions"`
			} `json:"f:status"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue // what cannot be decoded has no known writer
		}
		for key, of := range fields.Status.Conditions {
			var name struct {
				Type string `json:"type"`
			}
			// The key is such as k:{"type":"Ready"}.
			if json.Unmarshal([]byte(strings.TrimPrefix(key, "k:")), &name) != nil {
				continue
			}
			if _, ok := of["f:status"]; ok {
				writers[name.Type] = entry.Manager
			}
		}
	}
	return writers
}

// TransitionTime returns the last transition time of a condition whose status changed
// at since, which an outage of the API server may have hidden until now. If somebody
// else has changed the condition since, it changes back now. If the wall clock was set
// since, the result is on the new clock.
func TransitionTime(since time.Time, previous metav1.Time, now time.Time) metav1.Time {
	if since.IsZero() {
		return metav1.NewTime(now)
	}
	since = now.Add(-now.Sub(since))
	if since.After(now) || !since.After(previous.Time) {
		return metav1.NewTime(now)
	}
	return metav1.NewTime(since)
}

// lastCondition returns the last condition of a type, or nil.
func lastCondition(node *v1.Node, kind v1.NodeConditionType) *v1.NodeCondition {
	for i := len(node.Status.Conditions) - 1; i >= 0; i-- {
		if node.Status.Conditions[i].Type == kind {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

func orDefault(fieldManager string) string { return cmp.Or(fieldManager, DefaultFieldManager) }

package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// Manager is the name by which the API server knows our writes: what stands before
// the slash of the user agent.
const Manager = "nodeprobe"

// Prefix is that of the conditions which are ours by default.
const Prefix = "nodeprobe.dev/"

// BuiltIn are the conditions of a Node that others write: a kubelet, and a network
// plugin. They are never ours beside one.
var BuiltIn = []v1.NodeConditionType{
	v1.NodeReady, v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure, v1.NodeNetworkUnavailable,
}

// augmentation is what is to be posted beside a kubelet: conditions of our own and
// nothing else. Its patch is put together from them alone, so that no other part of
// the Node can get into it.
type augmentation struct {
	all, news []setCondition  // of the patch: each of ours, and those that have changed
	drop      []dropCondition // of the patch: those that are to go
	told      []told
	err       error // why some were left out
}

// condition entries of a patch. A patch of conditions is merged by type.
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

// augment compares the findings with what the Node says. What somebody else has
// written is left alone; what we have written and no finding is about is removed.
func augment(node *v1.Node, findings []pressure.Finding, now time.Time) augmentation {
	var a augmentation
	writers := conditionWriters(node)
	var foreign []string
	for i := range findings {
		f := &findings[i]
		existing := condition(node, v1.NodeConditionType(f.Type))
		if existing != nil && writers[f.Type] != Manager && writers[f.Type] != "" {
			foreign = append(foreign, fmt.Sprintf("condition %s was written by %s", f.Type, writers[f.Type]))
			continue
		}
		a.add(node.Name, f, existing, now)
	}
	for i := range node.Status.Conditions {
		kind := string(node.Status.Conditions[i].Type)
		if isOurs(kind, writers[kind]) && !slices.ContainsFunc(findings, func(f pressure.Finding) bool { return f.Type == kind }) {
			a.drop = append(a.drop, dropCondition{"delete", kind})
		}
	}
	if len(foreign) > 0 {
		a.err = errors.New(strings.Join(foreign, "; ") + ": it is left alone; choose another type, or remove that condition")
	}
	return a
}

// isOurs says whether a condition was posted by us. The API server does not tell who
// wrote a Node that was created without a single label; then its name must do.
func isOurs(kind, writer string) bool {
	// A node that was in mode own has the kubelet's from us: they are its again.
	if slices.Contains(BuiltIn, v1.NodeConditionType(kind)) {
		return false
	}
	return writer == Manager || writer == "" && strings.HasPrefix(kind, Prefix)
}

func (a *augmentation) add(nodeName string, f *pressure.Finding, existing *v1.NodeCondition, now time.Time) {
	entry := setCondition{
		Type: f.Type, Status: v1.ConditionStatus(f.Status.String()), Reason: f.Reason, Message: line(f.Message, maxMessage),
		LastHeartbeatTime: metav1.NewTime(now),
	}
	var was v1.NodeCondition
	if existing != nil {
		was = *existing
	}
	entry.LastTransitionTime = was.LastTransitionTime
	if was.Status != entry.Status {
		entry.LastTransitionTime = transitionTime(f.Since, was.LastTransitionTime, now)
	}
	a.all = append(a.all, entry)
	// The words of True hold a figure, which may be another one after a restart.
	if was.Status == entry.Status && was.Reason == entry.Reason {
		return
	}
	a.news = append(a.news, entry)
	if was.Status == entry.Status || was.Status == "" && entry.Status != v1.ConditionTrue {
		return // what is well from the beginning is no news
	}
	kind := v1.EventTypeNormal
	if entry.Status == v1.ConditionTrue {
		kind = v1.EventTypeWarning
	}
	a.told = append(a.told, told{kind, entry.Reason, fmt.Sprintf("Node %s condition %s is now %s: %s", nodeName, f.Type, entry.Status, f.Message)})
}

// changed says whether there is anything that the API server does not have yet.
func (a *augmentation) changed() bool { return len(a.news)+len(a.drop) > 0 }

// patch returns the body of the patch: all of ours where the period is over.
func (a *augmentation) patch(all bool) ([]byte, error) {
	set := a.news
	if all {
		set = a.all
	}
	entries := make([]any, 0, len(set)+len(a.drop))
	for _, e := range set {
		entries = append(entries, e)
	}
	for _, e := range a.drop {
		entries = append(entries, e)
	}
	body := map[string]any{"status": map[string]any{"conditions": entries}}
	patch, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	return patch, nil
}

// Cleanup removes from a Node the conditions that Augment has put there, by whatever
// configuration, and returns their types.
func Cleanup(ctx context.Context, nodes Nodes, name string) (removed []string, err error) {
	node, err := nodes.Get(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}
	a := augment(node, nil, time.Time{})
	if !a.changed() {
		return nil, nil
	}
	patch, err := a.patch(false)
	if err != nil {
		return nil, err
	}
	if _, err := nodes.PatchStatus(ctx, name, patch); err != nil {
		return nil, fmt.Errorf("patch status of node %s: %w", name, err)
	}
	for _, e := range a.drop {
		removed = append(removed, e.Type)
	}
	slices.Sort(removed)
	return removed, nil
}

// conditionWriters returns who wrote the status of each condition last, by the API
// server's own account (metadata.managedFields).
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
			continue // what we cannot read is nobody's
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

// phaseOf is where in a period a node posts: nodes are spread evenly by their names.
func phaseOf(nodeName string, period time.Duration) time.Duration {
	h := fnv.New64a()
	h.Write([]byte(nodeName))
	// FNV's last bytes of short names that differ in their last letter are close
	// together; multiplying spreads them.
	spread := h.Sum64() * 0x9e3779b97f4a7c15
	return time.Duration(float64(spread>>11) / (1 << 53) * float64(period))
}

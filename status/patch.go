package status

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Patch returns the strategic-merge patch that turns old into next, in the
// kubelet's wire form. It covers the status, the labels and the annotations, which
// are what a Node's own agent may change. The patch holds no resource version, so
// that it cannot conflict, and nothing that is the same in both, so that it cannot
// undo what others have written meanwhile.
//
// The general differ of k8s.io/apimachinery makes the same patch (a test in test/
// compares the two) but brings in an OpenAPI library.
func Patch(old, next *v1.Node) ([]byte, error) {
	before, err := toMap(old)
	if err != nil {
		return nil, err
	}
	after, err := toMap(next)
	if err != nil {
		return nil, err
	}
	status := diffStatus(child(before, "status"), child(after, "status"))
	if len(old.Status.Addresses) > 0 && !apiequality.Semantic.DeepEqual(old.Status.Addresses, next.Status.Addresses) {
		status["addresses"] = replaceAll(child(after, "status")["addresses"])
	}
	patch := map[string]any{}
	if metadata := diffMap(child(before, "metadata"), child(after, "metadata")); len(metadata) > 0 {
		patch["metadata"] = metadata
	}
	if len(status) > 0 {
		patch["status"] = status
	}
	return json.Marshal(patch)
}

// toMap returns what Patch covers as decoded JSON.
func toMap(node *v1.Node) (map[string]any, error) {
	data, err := json.Marshal(&v1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: node.Labels, Annotations: node.Annotations},
		Status:     node.Status,
	})
	if err != nil {
		return nil, fmt.Errorf("encode node %s: %w", node.Name, err)
	}
	var m map[string]any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // a float64 would round large byte counts
	if err := decoder.Decode(&m); err != nil {
		return nil, fmt.Errorf("decode node %s: %w", node.Name, err)
	}
	return m, nil
}

func child(m map[string]any, key string) map[string]any {
	if c, ok := m[key].(map[string]any); ok {
		return c
	}
	return map[string]any{}
}

// diffMap returns the keys that differ: null for one that is gone. Lists are
// atomic, as all lists of a node's status are but conditions and addresses.
func diffMap(before, after map[string]any) map[string]any {
	diff := map[string]any{}
	for key := range before {
		if _, ok := after[key]; !ok {
			diff[key] = nil
		}
	}
	for key, value := range after {
		was, ok := before[key]
		wasMap, isMap := was.(map[string]any)
		valueMap, valueIsMap := value.(map[string]any)
		switch {
		case !ok:
			diff[key] = value
		case isMap && valueIsMap:
			if d := diffMap(wasMap, valueMap); len(d) > 0 {
				diff[key] = d
			}
		case !reflect.DeepEqual(was, value):
			diff[key] = value
		}
	}
	return diff
}

// diffStatus is diffMap, but for the conditions: the API merges them by type.
func diffStatus(before, after map[string]any) map[string]any {
	was, is := list(before, "conditions"), list(after, "conditions")
	if len(was) == 0 || len(is) == 0 {
		return diffMap(before, after) // a list that comes or goes as a whole
	}
	delete(before, "conditions")
	delete(after, "conditions")
	diff := diffMap(before, after)
	if items := diffConditions(was, is); len(items) > 0 {
		var order []any
		for _, c := range is {
			order = append(order, map[string]any{"type": c["type"]})
		}
		diff["conditions"], diff["$setElementOrder/conditions"] = items, order
	}
	return diff
}

// diffConditions compares conditions of the same type. Only what changed in each
// is sent. If there are two of a type, the first is compared with the first.
func diffConditions(before, after []map[string]any) []any {
	was := map[any][]map[string]any{}
	for _, c := range before {
		was[c["type"]] = append(was[c["type"]], c)
	}
	var items []any
	for _, c := range after {
		var old map[string]any
		if left := was[c["type"]]; len(left) > 0 {
			old, was[c["type"]] = left[0], left[1:]
		}
		if d := diffMap(old, c); len(d) > 0 {
			d["type"] = c["type"]
			items = append(items, d)
		}
	}
	// No built-in setter removes a condition; one that is missing was removed on purpose.
	slices.SortStableFunc(before, func(a, b map[string]any) int {
		return cmp.Compare(fmt.Sprint(a["type"]), fmt.Sprint(b["type"]))
	})
	for _, c := range before {
		same := func(other map[string]any) bool { return other["type"] == c["type"] }
		if !slices.ContainsFunc(after, same) {
			items = append(items, map[string]any{"$patch": "delete", "type": c["type"]})
		}
	}
	return items
}

func list(m map[string]any, key string) []map[string]any {
	var maps []map[string]any
	items, _ := m[key].([]any)
	for _, item := range items {
		if c, ok := item.(map[string]any); ok {
			maps = append(maps, c)
		}
	}
	return maps
}

// replaceAll returns a whole list with a directive to replace the old one. The
// API would merge addresses by type, and a node may have two of one type.
func replaceAll(list any) []any {
	items, _ := list.([]any)
	return append(slices.Clone(items), map[string]any{"$patch": "replace"})
}

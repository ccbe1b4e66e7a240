package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// Patch returns the strategic-merge patch that turns old into next, in the
// kubelet's wire form. The spec is never in it, and neither is a resource
// version: the patch cannot conflict, so it must hold nothing that was not
// changed here.
//
// The general differ of k8s.io/apimachinery makes the same patch (a test in
// test/ holds the two together) but brings an OpenAPI library along.
func Patch(old, next *v1.Node) ([]byte, error) {
	before, err := toMap(old)
	if err != nil {
		return nil, err
	}
	after, err := toMap(next)
	if err != nil {
		return nil, err
	}
	patch := map[string]any{}
	if d := diffMap(child(before, "metadata"), child(after, "metadata")); len(d) > 0 {
		patch["metadata"] = d
	}
	beforeStatus, afterStatus := child(before, "status"), child(after, "status")
	conditions := diffConditions(beforeStatus, afterStatus)
	addresses := replaceAddresses(old.Status.Addresses, next.Status.Addresses, afterStatus)
	for _, s := range []map[string]any{beforeStatus, afterStatus} {
		delete(s, "conditions")
		if addresses != nil {
			delete(s, "addresses")
		}
	}
	status := diffMap(beforeStatus, afterStatus)
	if addresses != nil {
		status["addresses"] = addresses
	}
	for key, value := range conditions {
		status[key] = value
	}
	if len(status) > 0 {
		patch["status"] = status
	}
	return json.Marshal(patch)
}

func toMap(node *v1.Node) (map[string]any, error) {
	data, err := json.Marshal(node)
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

// diffConditions compares the conditions by type. Only what changed in each is
// sent; the order directive that goes with it names all of them.
func diffConditions(before, after map[string]any) map[string]any {
	was := map[any]map[string]any{}
	for _, c := range list(before, "conditions") {
		was[c["type"]] = c
	}
	var order, items []any
	for _, c := range list(after, "conditions") {
		order = append(order, map[string]any{"type": c["type"]})
		d := diffMap(was[c["type"]], c)
		delete(was, c["type"])
		if len(d) > 0 {
			d["type"] = c["type"]
			items = append(items, d)
		}
	}
	// No setter removes a condition; one that does means to.
	for _, c := range list(before, "conditions") {
		if _, gone := was[c["type"]]; gone {
			items = append(items, map[string]any{"$patch": "delete", "type": c["type"]})
		}
	}
	if len(items) == 0 {
		return nil
	}
	diff := map[string]any{"conditions": items}
	if len(order) > 0 {
		diff["$setElementOrder/conditions"] = order
	}
	return diff
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

// replaceAddresses returns the whole list of addresses with a directive to
// replace the old one, or nil if the ordinary difference will do. The API
// merges addresses by type, and a node may have two of one type.
func replaceAddresses(old, next []v1.NodeAddress, after map[string]any) []any {
	if len(old) == 0 || apiequality.Semantic.DeepEqual(old, next) {
		return nil
	}
	items, _ := after["addresses"].([]any)
	return append(append([]any{}, items...), map[string]any{"$patch": "replace"})
}

package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// applyPatch is what an API server does with a strategic-merge patch of
// nodes/<name>/status, for those directives that Patch uses: it is written from
// the API's documentation, not from Patch. A test in test/ compares Patch with
// the API machinery's own.
func applyPatch(node *v1.Node, patch []byte) (*v1.Node, error) {
	object, err := decode(node)
	if err != nil {
		return nil, err
	}
	var change map[string]any
	decoder := json.NewDecoder(bytes.NewReader(patch))
	decoder.UseNumber()
	if err := decoder.Decode(&change); err != nil {
		return nil, err
	}
	if err := mergeMap(object, change); err != nil {
		return nil, err
	}
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	patched := &v1.Node{}
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if err := strict.Decode(patched); err != nil {
		return nil, err
	}
	patched.Spec = *node.Spec.DeepCopy() // the status endpoint does not write it
	return patched, nil
}

func decode(v any) (m map[string]any, err error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	err = decoder.Decode(&m)
	return m, err
}

const orderDirective = "$setElementOrder/"

func mergeMap(object, change map[string]any) error {
	for key, value := range change {
		if strings.HasPrefix(key, orderDirective) {
			continue // after the lists
		}
		inner, isMap := value.(map[string]any)
		present, wasMap := object[key].(map[string]any)
		switch {
		case value == nil:
			delete(object, key)
		case isMap && wasMap:
			if err := mergeMap(present, inner); err != nil {
				return err
			}
		case key == "conditions" || key == "addresses":
			merged, err := mergeList(object[key], value)
			if err != nil {
				return err
			}
			object[key] = merged
		default:
			object[key] = value
		}
	}
	for key, order := range change {
		if list, ok := strings.CutPrefix(key, orderDirective); ok {
			if err := reorder(object[list], order); err != nil {
				return err
			}
		}
	}
	return nil
}

// mergeList merges items with the same type into the first of that type.
func mergeList(present, change any) ([]any, error) {
	list, _ := present.([]any)
	list = slices.Clone(list)
	changes, ok := change.([]any)
	if !ok {
		return nil, fmt.Errorf("%v is no list", change)
	}
	var items []map[string]any
	for _, c := range changes {
		item := c.(map[string]any)
		switch item["$patch"] {
		case "replace":
			list = nil
		case "delete":
			list = slices.DeleteFunc(list, func(e any) bool { return e.(map[string]any)["type"] == item["type"] })
		case nil:
			items = append(items, item)
		default:
			return nil, fmt.Errorf("unknown directive %v", item)
		}
	}
	whole := len(list) == 0 // then items of the same type stay apart
	for _, item := range items {
		i := slices.IndexFunc(list, func(e any) bool { return e.(map[string]any)["type"] == item["type"] })
		if i < 0 || whole {
			list = append(list, item)
			continue
		}
		if err := mergeMap(list[i].(map[string]any), item); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// reorder puts the items that order names into its order. Others keep their
// places.
func reorder(present, order any) error {
	list, _ := present.([]any)
	var places []int
	var named []any
	for _, o := range order.([]any) {
		entry := o.(map[string]any)
		if len(entry) != 1 {
			return fmt.Errorf("order names more than the type: %v", entry)
		}
		for i, item := range list {
			if item.(map[string]any)["type"] == entry["type"] && !slices.Contains(places, i) {
				places, named = append(places, i), append(named, item)
			}
		}
	}
	slices.Sort(places)
	for i, place := range places {
		list[place] = named[i]
	}
	return nil
}

// The applier is trusted by other tests, so it is tested itself.
func TestApplyPatch(t *testing.T) {
	node := &v1.Node{Status: v1.NodeStatus{
		Conditions: []v1.NodeCondition{{Type: "A", Status: "True"}, {Type: "X", Status: "True"}, {Type: "B", Status: "True"}},
		Addresses:  addresses("10.0.0.1", "10.0.0.2", nodeName),
		Capacity:   resources(map[string]string{"cpu": "1", "memory": "1Gi"}),
	}}
	for _, test := range []struct{ patch, conditions, addresses, capacity string }{
		{`{}`, "A=True X=True B=True", "10.0.0.1 10.0.0.2 node-1", "cpu memory"},
		{`{"status":{"capacity":{"cpu":null}},"spec":{"podCIDR":"10.0.0.0/8"}}`, "A=True X=True B=True", "10.0.0.1 10.0.0.2 node-1", "memory"},
		{`{"status":{"capacity":null,"conditions":[{"type":"B","status":"False"}]}}`, "A=True X=True B=False", "10.0.0.1 10.0.0.2 node-1", ""},
		{`{"status":{"$setElementOrder/conditions":[{"type":"B"},{"type":"A"}],"conditions":[{"type":"C"},{"$patch":"delete","type":"A"}]}}`, "X=True B=True C=", "10.0.0.1 10.0.0.2 node-1", "cpu memory"},
		{`{"status":{"$setElementOrder/conditions":[{"type":"B"},{"type":"A"}]}}`, "B=True X=True A=True", "10.0.0.1 10.0.0.2 node-1", "cpu memory"},
		{`{"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.3"}]}}`, "A=True X=True B=True", "10.0.0.3 10.0.0.2 node-1", "cpu memory"},
		{`{"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.3"},{"type":"InternalIP","address":"10.0.0.4"},{"$patch":"replace"}]}}`, "A=True X=True B=True", "10.0.0.3 10.0.0.4", "cpu memory"},
	} {
		got, err := applyPatch(node, []byte(test.patch))
		if err != nil {
			t.Errorf("%s: %v", test.patch, err)
			continue
		}
		var conditions, addrs, capacity []string
		for _, c := range got.Status.Conditions {
			conditions = append(conditions, string(c.Type)+"="+string(c.Status))
		}
		for _, a := range got.Status.Addresses {
			addrs = append(addrs, a.Address)
		}
		for _, name := range slices.Sorted(maps.Keys(got.Status.Capacity)) {
			capacity = append(capacity, string(name))
		}
		diff(t, test.patch, []string{test.conditions, test.addresses, test.capacity},
			[]string{strings.Join(conditions, " "), strings.Join(addrs, " "), strings.Join(capacity, " ")})
		diff(t, "spec", node.Spec, got.Spec)
	}
	if _, err := applyPatch(node, []byte(`{"status":{"unheardOf":1}}`)); err == nil {
		t.Error("an unknown field is accepted")
	}
}

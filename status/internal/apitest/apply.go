package apitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// ApplyPatch does what an API server does with a strategic-merge patch of
// nodes/<name>/status, for those directives that Patch uses: it is written from
// the API's documentation, not from Patch. A test in test/ compares Patch with
// the API machinery's own.
func ApplyPatch(node *v1.Node, patch []byte) (*v1.Node, error) {
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

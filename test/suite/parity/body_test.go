package parity

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"strings"
)

// times are the fields that hold one, with the form that it must have.
var times = map[string]*regexp.Regexp{
	"lastHeartbeatTime":  regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$`),
	"lastTransitionTime": regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$`),
	"creationTimestamp":  regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$`),
	"renewTime":          regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`),
}

// normalBody is the body of a request without what differs for reasons of its own:
// names, identities and times, of which the form is left.
func normalBody(raw json.RawMessage) (map[string]any, error) {
	var body map[string]any
	if err := json.Unmarshal(raw, &body); err != nil {
		return nil, fmt.Errorf("decode body %s: %w", raw, err)
	}
	blank(body)
	return rename(body).(map[string]any), nil
}

func blank(value any) {
	switch v := value.(type) {
	case []any:
		for i := range v {
			blank(v[i])
		}
	case map[string]any:
		for key, field := range v {
			form := times[key]
			content, isText := field.(string)
			switch {
			case form != nil && isText && form.MatchString(content):
				v[key] = "TIME"
			case (key == "uid" || key == "resourceVersion") && isText:
				v[key] = "ID"
			case key == "managedFields": // the API server's, sent back to it
				delete(v, key)
			default:
				blank(field)
			}
		}
	}
}

// strip returns a body without the fields that are allowed to differ, and without
// the maps that have become empty by that.
func strip(body map[string]any, allowed *allowance) map[string]any {
	for path := range *allowed {
		body = pruned(body, strings.Split(path, "."))
	}
	return body
}

func pruned(m map[string]any, path []string) map[string]any {
	field, ok := m[path[0]]
	if !ok {
		return m
	}
	m = maps.Clone(m)
	inner, isMap := field.(map[string]any)
	switch {
	case len(path) == 1:
		delete(m, path[0])
	case isMap:
		if inner = pruned(inner, path[1:]); len(inner) == 0 {
			delete(m, path[0])
		} else {
			m[path[0]] = inner
		}
	}
	return m
}

// addHeartbeats puts into a patch the heartbeats that it lacks because the patch
// before was sent in the same second: the difference has nothing of them then.
func addHeartbeats(body map[string]any) {
	status, _ := body["status"].(map[string]any)
	order, _ := status["$setElementOrder/conditions"].([]any)
	told := conditions(body)
	var all []any
	for _, item := range order {
		key, _ := item.(map[string]any)
		entry := map[string]any{"type": key["type"]}
		for _, c := range told {
			if c["type"] == key["type"] {
				entry = c
			}
		}
		entry["lastHeartbeatTime"] = "TIME"
		all = append(all, entry)
	}
	if len(all) > 0 {
		status["conditions"] = all
	}
}

package config

import (
	"fmt"
	"reflect"
	"slices"
	"time"
)

// changeable are the fields that can change while the agent runs.
var changeable = []string{
	"sampleInterval", "logLevel",
	"evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim",
	"evictionPressureTransitionPeriod", "enforceNodeAllocatable", "conditions",
	"nodeStatusUpdateFrequency", "nodeStatusReportFrequency",
	"maxPods", "podsPerCore", "systemReserved", "kubeReserved", "reservedSystemCPUs", "localStorageCapacityIsolation",
}

// Merge returns l with what can change while the agent runs taken from wanted, and the
// names of the fields that differ, as the file spells them: those that were taken, and
// those that need a restart. It fails where the two do not fit together.
func (l *Loaded) Merge(wanted *Loaded) (next *Loaded, changed, restart []string, err error) {
	merged := l.file
	from, to := reflect.ValueOf(wanted.file), reflect.ValueOf(&merged).Elem()
	for i := range from.NumField() {
		name := from.Type().Field(i).Tag.Get("yaml")
		switch {
		case alike(from.Field(i), to.Field(i)):
		case slices.Contains(changeable, name):
			to.Field(i).Set(from.Field(i))
			changed = append(changed, name)
		default:
			restart = append(restart, name)
		}
	}
	next, _, problems := merged.resolve(l.Agent)
	if len(problems) > 0 {
		return nil, nil, nil, fmt.Errorf("%s: %w", problems[0].name(), problems[0].err)
	}
	next.Agent.NodeName = l.Agent.NodeName // the hostname may be another by now
	next.Remarks = wanted.Remarks
	return next, changed, restart, nil
}

// alike reports whether two fields mean the same; an empty one is like none.
func alike(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Map, reflect.Slice:
		if a.Len() == 0 && b.Len() == 0 {
			return true
		}
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

// Fields returns the configuration in force by the names of the file, as values that
// encoding/json can write. Nothing in it is secret; secrets are in files that it names.
func (l *Loaded) Fields() map[string]any {
	f := l.file
	f.NodeName = l.Agent.NodeName
	return plainValue(reflect.ValueOf(f)).(map[string]any)
}

// plainValue turns what a file consists of into what JSON has.
func plainValue(v reflect.Value) any {
	if d, ok := reflect.TypeAssert[time.Duration](v); ok {
		return d.String()
	}
	switch v.Kind() {
	case reflect.Struct:
		fields := map[string]any{}
		for field, value := range v.Fields() {
			fields[field.Tag.Get("yaml")] = plainValue(value)
		}
		return fields
	case reflect.Slice:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = plainValue(v.Index(i))
		}
		return list
	case reflect.Map:
		entries := map[string]any{}
		for _, key := range v.MapKeys() {
			entries[key.String()] = plainValue(v.MapIndex(key))
		}
		return entries
	default:
		return v.Interface()
	}
}

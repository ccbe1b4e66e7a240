package main

import (
	"encoding/json"
	"net/http"
	"reflect"
	"time"
)

// configz answers with the configuration in force, as a kubelet does: the files,
// the flags and the defaults together. Nothing in it is secret; what is secret is
// in files that it names.
func configz(cfg *config, nodeName string) http.Handler {
	effective := *cfg
	effective.NodeName = nodeName
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		body, err := json.Marshal(map[string]any{"nodeprobeconfig": byField(reflect.ValueOf(effective))})
		if err != nil { // there is nothing in it that JSON does not have
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(append(body, '\n')) // a client that is gone
	})
}

// byField turns what a configuration consists of into what JSON has, with the
// names that the file has for them.
func byField(v reflect.Value) any {
	if d, ok := reflect.TypeAssert[time.Duration](v); ok {
		return d.String()
	}
	switch v.Kind() {
	case reflect.Struct:
		fields := map[string]any{}
		for i := range v.NumField() {
			fields[v.Type().Field(i).Tag.Get("yaml")] = byField(v.Field(i))
		}
		return fields
	case reflect.Slice:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = byField(v.Index(i))
		}
		return list
	case reflect.Map:
		entries := map[string]any{}
		for _, key := range v.MapKeys() {
			entries[key.String()] = byField(v.MapIndex(key))
		}
		return entries
	default:
		return v.Interface()
	}
}

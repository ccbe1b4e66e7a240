package config

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Each field either can change or is named as one that cannot.
func TestMerge(t *testing.T) {
	values := map[string]string{ // that are valid, and no default
		"mode": "own", "nodeName": "other", "bpf": "off", "rootDirectory": "/other", "kubeconfig": "/other",
		"fieldManager": "other", "providerID": "other", "nodeIP": "192.0.2.1", "cloudProvider": "external",
		"reservedSystemCPUs": "0", "containerRuntimeEndpoint": "/run/other", "imageServiceEndpoint": "/run/other",
		"kubeletVersion": "v1.2.3", "exitMessage": "other", "conditionsOnExit": "keep", "webListenAddress": ":1",
		"webHealthListenAddress": ":2", "webConfigFile": "/other", "logLevel": "warn", "logFormat": "json",
		"imageDirectories": "/other", "lockedMemoryLimit": "64Mi", "enforceNodeAllocatable": "none",
		"evictionSoftGracePeriod": "1m", "evictionHard": "1Gi", "evictionMinimumReclaim": "1Gi",
		"systemReserved": "1", "kubeReserved": "1", "volumeLimits": "1", "nodeLabels": "other", "nodeAnnotations": "other",
	}
	keys := map[string]string{
		"evictionHard": "memory.available", "evictionSoft": "memory.available", "evictionSoftGracePeriod": "memory.available",
		"evictionMinimumReclaim": "memory.available", "systemReserved": "pid", "kubeReserved": "pid", "volumeLimits": "d",
		"nodeLabels": "a", "nodeAnnotations": "a",
	}
	typ := reflect.TypeFor[file]()
	for i := range typ.NumField() {
		name := typ.Field(i).Tag.Get("yaml")
		if name == "apiVersion" || name == "kind" {
			continue // one value is valid
		}
		t.Run(name, func(t *testing.T) {
			current := mustParse(t, "containerRuntimeEndpoint: /run/a\nevictionSoftGracePeriod: {memory.available: 1h}\n")
			wanted := *current
			field := reflect.ValueOf(&wanted.file).Elem().Field(i)
			switch field.Kind() {
			case reflect.String:
				field.SetString(values[name])
			case reflect.Bool:
				field.SetBool(!field.Bool())
			case reflect.Int32, reflect.Int64:
				field.SetInt(field.Int() + max(field.Int()/10, 1))
			case reflect.Map:
				entries := reflect.MakeMap(field.Type())
				switch name {
				case "conditions":
					wanted.file.Conditions = map[string]condition{}
				case "evictionSoft":
					wanted.file.EvictionSoft = map[string]string{keys[name]: "1Gi"}
				default:
					entries.SetMapIndex(reflect.ValueOf(keys[name]), reflect.ValueOf(values[name]))
					field.Set(entries)
				}
			case reflect.Slice:
				if name == "registerWithTaints" {
					wanted.file.RegisterWithTaints = []taint{{"a", "b", "NoExecute"}}
					break
				}
				field.Set(reflect.ValueOf([]string{values[name]}))
			}
			next, changed, restart, err := current.Merge(&wanted)
			if err != nil {
				t.Fatal(err)
			}
			if slices.Contains(changeable, name) {
				if !slices.Equal(changed, []string{name}) || restart != nil || !reflect.DeepEqual(next.file, wanted.file) {
					t.Errorf("changed %q, restart %q", changed, restart)
				}
			} else if changed != nil || !slices.Equal(restart, []string{name}) || !reflect.DeepEqual(next.file, current.file) {
				t.Errorf("changed %q, restart %q", changed, restart)
			}
		})
	}
	for _, name := range changeable {
		if !fieldNamed(reflect.ValueOf(file{}), name).IsValid() {
			t.Errorf("no field %s", name)
		}
	}
	empty, none := mustParse(t, ""), mustParse(t, "")
	empty.file.NodeLabels, none.file.NodeLabels = map[string]string{}, nil
	if _, changed, restart, err := none.Merge(empty); changed != nil || restart != nil || err != nil {
		t.Errorf("an empty map: changed %q, restart %q, error %v", changed, restart, err)
	}
}

// What the program has added to the configuration stays; so does the node's name.
func TestMergeKeeps(t *testing.T) {
	t.Setenv("NODE_NAME", "n")
	current := mustParse(t, "")
	current.Agent.Version, current.Agent.Rootfs = "v9", "/host"
	current.Agent.OnReconnect = func() {}
	t.Setenv("NODE_NAME", "m")
	next, changed, restart, err := current.Merge(mustParse(t, "sampleInterval: 3s\nport: 1\nlogLevel: warn\n"))
	if err != nil || !slices.Equal(changed, []string{"sampleInterval", "logLevel"}) || !slices.Equal(restart, []string{"port"}) {
		t.Fatalf("changed %q, restart %q, error %v", changed, restart, err)
	}
	a := next.Agent
	if a.SampleInterval != 3*time.Second || next.LogLevel.String() != "WARN" || a.Port != 10250 {
		t.Errorf("got %+v", next)
	}
	if a.Version != "v9" || a.Rootfs != "/host" || a.OnReconnect == nil || a.NodeName != "n" {
		t.Errorf("it has lost what the program added: %+v", a)
	}
}

// What can change may not fit to what cannot.
func TestMergeThatDoesNotFit(t *testing.T) {
	current := mustParse(t, "")
	wanted := mustParse(t, "")
	wanted.file.EvictionHard = map[string]string{"memory.available": "much"}
	if _, _, _, err := current.Merge(wanted); err == nil || !strings.HasPrefix(err.Error(), "evictionHard[memory.available]: ") {
		t.Errorf("got %v", err)
	}
}

// The fields are a configuration that comes to the same when it is read again.
func TestFields(t *testing.T) {
	cfg := mustParse(t, `mode: own
nodeName: Worker-1
evictionHard: {memory.available: 1Gi}
evictionPressureTransitionPeriod: 90s
nodeLabels: {rack: r7}
registerWithTaints: [{key: a, value: b, effect: NoSchedule}]
imageDirectories: []
maxPods: 250
`, Setting{"log.level", "logLevel", "warn"})
	data, err := json.Marshal(cfg.Fields())
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	if n := reflect.TypeFor[file]().NumField(); len(fields) != n {
		t.Errorf("%d fields, want %d:\n%s", len(fields), n, data)
	}
	for field, want := range map[string]any{
		"nodeName": "worker-1", "logLevel": "warn", "maxPods": 250.0, "evictionPressureTransitionPeriod": "1m30s",
		"imageDirectories": []any{}, "evictionSoft": map[string]any{}, "webConfigFile": "",
	} {
		if diff := cmp.Diff(want, fields[field]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", field, diff)
		}
	}
	read, err := parse("configz", string(data))
	if err != nil {
		t.Fatal(err)
	}
	cfg.file.NodeName = "worker-1"
	if diff := cmp.Diff(cfg.file, read.file); diff != "" {
		t.Errorf("(-served +read):\n%s", diff)
	}
}

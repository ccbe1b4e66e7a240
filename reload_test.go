package nodeprobe

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/internal/judge/judgetest"
	"github.com/nodeprobe/nodeprobe/internal/testtree"
	"github.com/nodeprobe/nodeprobe/probe/notify"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// What is not in force before the first sample, and what is refused, changes nothing.
func TestReload(t *testing.T) {
	cfg, log := treeConfig(t, testtree.New(t, nil))
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	more := cfg
	more.Thresholds = judgetest.Thresholds(t, map[string]string{"memory.available": "7Gi"}) // of which 6 are available
	if err := a.Reload(more); !errors.Is(err, errNothingSampled) {
		t.Errorf("before the first sample: %v", err)
	}
	running(t, a)
	reg := cfg.Registerer.(prometheus.Gatherer)
	memory := func() float64 { return judgetest.Gauges(t, reg, "nodeprobe_condition_status")["MemoryPressure"] }
	testtree.Eventually(t, "no pressure", func() bool { return memory() == 0 })

	wrong := more
	wrong.SampleInterval, wrong.NodeName, wrong.TransitionPeriod = time.Millisecond, "My_Node", -1
	err = a.Reload(wrong)
	var fields []string
	for field := range fieldErrorsOf(err) {
		fields = append(fields, field)
	}
	slices.Sort(fields)
	if !slices.Equal(fields, []string{"NodeName", "SampleInterval", "TransitionPeriod"}) {
		t.Errorf("wrong fields: %v", err)
	}
	if s := a.State(); s.Estimates[0].Threshold.Value.Quantity == 7<<30 || memory() != 0 {
		t.Error("some of what is wrong is in force")
	}

	stuck := more
	stuck.NodeName, stuck.Rootfs, stuck.DisableBPF, stuck.Labels = "other", "/", false, map[string]string{"a": "b"}
	stuck.ImageDirectories = nil
	err = a.Reload(stuck)
	restart, ok := errors.AsType[*RestartError](err)
	if !ok || !slices.Equal(restart.Fields, []string{"NodeName", "Rootfs", "DisableBPF", "ImageDirectories", "Labels"}) {
		t.Errorf("fields that need a restart: %v", err)
	}
	testtree.Eventually(t, "the rest is in force", func() bool { return memory() == 1 })
	if s := a.State(); s.NodeName != cfg.NodeName {
		t.Errorf("node %s", s.NodeName)
	}
	if err := a.Reload(cfg); err != nil {
		t.Errorf("as it was: %v", err)
	}
	testtree.Eventually(t, "as it was", func() bool { return memory() == 0 })

	more.Thresholds = judgetest.Thresholds(t, map[string]string{"pid.available": "40k"})
	busy := judgetest.Rule(t, "example.com/Busy", "cpu.some.avg10 > 80%")
	more.Conditions = []pressure.Rule{judgetest.Rule(t, "example.com/Few", "pid.available < 40000"), busy}
	if err := a.Reload(more); err != nil {
		t.Error(err)
	}
	testtree.Eventually(t, "a condition of one's own", func() bool {
		s := a.State()
		return len(s.Conditions) == 2 && s.Conditions[0].Status == pressure.True
	})
	testtree.Eventually(t, "a trigger for the other", func() bool {
		return slices.ContainsFunc(a.notifier.Sources(), func(s notify.Source) bool { return s.Name == "pressure_cpu_some_rule" })
	})
	if !strings.Contains(log.String(), "threshold 40k is above the capacity 32768") {
		t.Errorf("no warning in\n%s", log)
	}
}

// The caller may change the maps and lists of its Config, for the next Reload: what is in
// force is a copy of its own.
func TestReloadOfAChangedConfig(t *testing.T) {
	cfg, _ := treeConfig(t, testtree.New(t, nil))
	cfg.Labels = map[string]string{"example.com/site": "a"}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	running(t, a)
	cfg.Labels["example.com/site"], cfg.ImageDirectories[0] = "b", "/other"
	cfg.Thresholds[0].Value = pressure.Value{Quantity: 7 << 30}
	if s := a.State(); s.Estimates[0].Threshold.Value.Quantity == 7<<30 {
		t.Error("a threshold is in force before Reload")
	}
	err = a.Reload(cfg)
	if restart, ok := errors.AsType[*RestartError](err); !ok || !slices.Equal(restart.Fields, []string{"ImageDirectories", "Labels"}) {
		t.Errorf("Reload: %v", err)
	}
	testtree.Eventually(t, "the threshold is in force", func() bool {
		s := a.State()
		return s.Verdicts[pressure.MemoryPressure].Status == pressure.True
	})
}

// fieldErrorsOf returns the *FieldErrors in an error, by field.
func fieldErrorsOf(err error) map[string]*FieldError {
	found := map[string]*FieldError{}
	if joined, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err); ok {
		for _, err := range joined.Unwrap() {
			if field, ok := errors.AsType[*FieldError](err); ok {
				found[field.Field] = field
			}
		}
	}
	return found
}

// Each field of a Config can change, or is named as one that cannot, or is what the Agent
// is attached to.
func TestEachFieldIsReloadedOrNamed(t *testing.T) {
	for field := range reflect.TypeFor[Config]().Fields() {
		before, after := valid(), valid()
		value := reflect.ValueOf(&after).Elem().FieldByIndex(field.Index)
		switch value.Kind() {
		case reflect.String:
			value.SetString("other")
		case reflect.Bool:
			value.SetBool(!value.Bool())
		case reflect.Int, reflect.Int32, reflect.Int64:
			value.SetInt(value.Int() + 1)
		case reflect.Slice:
			value.Set(reflect.MakeSlice(value.Type(), 7, 7))
		case reflect.Map:
			other := reflect.MakeMap(value.Type())
			other.SetMapIndex(reflect.ValueOf("other").Convert(value.Type().Key()), reflect.Zero(value.Type().Elem()))
			value.Set(other)
		case reflect.Pointer, reflect.Func, reflect.Interface, reflect.Struct:
			continue // API, functions, Logger, Registerer and ReservedCPUs: see below
		default:
			t.Fatalf("field %s: %v", field.Name, value.Kind())
		}
		changed := before
		reloadable(&changed, &after)
		isReloaded := !alike(reflect.ValueOf(changed).FieldByIndex(field.Index), reflect.ValueOf(before).FieldByIndex(field.Index))
		attached := before
		attachments(&attached, &after)
		isAttached := !alike(reflect.ValueOf(attached).FieldByIndex(field.Index), reflect.ValueOf(before).FieldByIndex(field.Index))
		named := slices.Equal(differing(&before, &after), []string{field.Name})
		kinds := 0
		for _, is := range []bool{isReloaded, isAttached, named} {
			if is {
				kinds++
			}
		}
		if kinds != 1 {
			t.Errorf("%s: reloaded %t, attached %t, needs a restart %t", field.Name, isReloaded, isAttached, named)
		}
	}
	empty, none := valid(), valid()
	empty.Labels, none.Labels = map[string]string{}, nil
	if fields := differing(&empty, &none); fields != nil {
		t.Errorf("an empty map differs from none: %q", fields)
	}
	twice := valid()
	if fields := differing(&twice, &twice); fields != nil {
		t.Errorf("equal ones differ: %q", fields)
	}
}

// More reserved than there is is refused at the start, and by a reload: all of it or
// nothing is in force.
func TestReloadChecksReservations(t *testing.T) {
	api := newAPIServer(t)
	cfg, _ := treeConfig(t, testtree.New(t, nil))
	cfg.Mode, cfg.API = Own, api.config
	cfg.SystemReserved = list(map[string]string{"memory": "64Gi"})
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), `Resource "memory" has a reservation of 65636Mi but capacity of 8Gi`) {
		t.Errorf("Run: %v", err)
	}
	if api.stored() != nil {
		t.Error("a Node is created")
	}
	cfg.SystemReserved = nil
	if a, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	running(t, a)
	more := cfg
	more.SystemReserved, more.Thresholds = list(map[string]string{"memory": "64Gi"}), judgetest.Thresholds(t, map[string]string{"memory.available": "7Gi"})
	if err := a.Reload(more); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("Reload: %v", err)
	}
	if s := a.State(); s.Estimates[0].Threshold.Value.Quantity == 7<<30 {
		t.Error("some of it is in force")
	}
	more.SystemReserved, more.MaxPods = list(map[string]string{"memory": "1Gi"}), 7
	if err := a.Reload(more); err != nil {
		t.Error(err)
	}
	testtree.Eventually(t, "it is in force", func() bool {
		return api.condition("MemoryPressure").Status == "True" && api.stored().Status.Capacity.Pods().Value() == 7
	})
}

// No map or list of a Config is shared with a detached copy.
func TestDetached(t *testing.T) {
	cfg := valid()
	cfg.Setters, cfg.EvictionReserved = []Setter{setGPUs}, cfg.Thresholds
	detached := cfg.detached()
	for field := range reflect.TypeFor[Config]().Fields() {
		ours, theirs := reflect.ValueOf(detached).FieldByIndex(field.Index), reflect.ValueOf(cfg).FieldByIndex(field.Index)
		switch field.Type.Kind() {
		case reflect.Map, reflect.Slice:
			if ours.Len() == 0 || ours.Len() != theirs.Len() || ours.Pointer() == theirs.Pointer() {
				t.Errorf("%s: %v, which is shared, or not as it was", field.Name, ours)
			}
		}
	}
}

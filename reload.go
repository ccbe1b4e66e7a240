package nodeprobe

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/nodeprobe/nodeprobe/probe"
)

// RestartError is what [Agent.Reload] returns if all is well but fields differ that
// cannot change while an Agent runs. They stay as they were; the rest is in force.
type RestartError struct{ Fields []string } // as in Config

// Error names the fields.
func (e *RestartError) Error() string {
	return "fields that need a restart stay as they are: " + strings.Join(e.Fields, ", ")
}

// reloadable copies from one configuration to another what can change while an Agent
// runs.
func reloadable(to, from *Config) {
	to.SampleInterval = from.SampleInterval
	to.Thresholds, to.TransitionPeriod, to.Conditions = from.Thresholds, from.TransitionPeriod, from.Conditions
	to.StatusUpdateFrequency, to.StatusReportFrequency = from.StatusUpdateFrequency, from.StatusReportFrequency
	to.MaxPods, to.PodsPerCore = from.MaxPods, from.PodsPerCore
	to.SystemReserved, to.KubeReserved, to.EvictionReserved = from.SystemReserved, from.KubeReserved, from.EvictionReserved
	to.ReservedCPUs, to.LocalStorageCapacityIsolation = from.ReservedCPUs, from.LocalStorageCapacityIsolation
}

// attachments copies what an Agent is attached to, which Reload does not look at.
func attachments(to, from *Config) {
	to.API, to.APIOrigin, to.Version = from.API, from.APIOrigin, from.Version
	to.Setters, to.OnSample, to.OnReconnect = from.Setters, from.OnSample, from.OnReconnect
	to.NetworkErrors, to.StorageErrors, to.SoftRequirements = from.NetworkErrors, from.StorageErrors, from.SoftRequirements
	to.Logger, to.Registerer = from.Logger, from.Registerer
}

var errNothingSampled = errors.New("nothing is sampled yet")

// Reload puts thresholds, conditions, periods between samples and posts, and
// reservations of cfg in force, and leaves the kernel programs attached; a condition
// that is held stays held. It does all of that or nothing: the error names the fields
// that are wrong, or is that nothing is sampled yet. It is a [*RestartError] if all is
// in force but other fields differ. API, APIOrigin, Version, functions, Logger and
// Registerer are those that New was given.
func (a *Agent) Reload(cfg Config) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	attachments(&cfg, &a.inForce)
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("reload configuration: %w", err)
	}
	next := a.inForce
	reloadable(&next, &cfg)
	snapshot, ok := a.sampler.Last()
	if !ok {
		return errNothingSampled
	}
	if err := a.mode.reload(&next, &snapshot); err != nil {
		return fmt.Errorf("reload configuration: %w", err)
	}
	a.warnThresholds(next.Thresholds, &snapshot)
	a.judge.Reload(policy(&next))
	a.notifier.SetStalls(stallTriggers(next.Conditions))
	a.sampler.SetInterval(next.SampleInterval)
	a.inForce = next
	a.mode.observe(&snapshot, true) // one of our conditions may be gone
	a.wake(probe.CauseReload)
	if fields := differing(&next, &cfg); len(fields) > 0 {
		return &RestartError{fields}
	}
	return nil
}

// differing returns the fields in which two configurations differ. Those that can be
// reloaded, or are attached, are the same in both.
func differing(a, b *Config) (fields []string) {
	other := *b
	reloadable(&other, a)
	attachments(&other, a)
	x, y := reflect.ValueOf(*a), reflect.ValueOf(other)
	for i := range x.NumField() {
		if x.Field(i).Kind() != reflect.Func && !alike(x.Field(i), y.Field(i)) {
			fields = append(fields, x.Type().Field(i).Name)
		}
	}
	return fields
}

// alike reports whether two fields mean the same; an empty list is like none.
func alike(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Map, reflect.Slice:
		if a.Len() == 0 && b.Len() == 0 {
			return true
		}
		if a.Len() > 0 && b.Len() == a.Len() && a.Pointer() == b.Pointer() {
			return true
		}
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

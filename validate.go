package nodeprobe

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/nodeprobe/nodeprobe/internal/check"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
)

// FieldError is what is wrong with one field of a [Config].
type FieldError struct {
	Field string // as in Config, such as "SampleInterval"
	Key   string // of an entry of that map, index in that list, or ""
	Err   error
}

// Error names the field, and the entry if there is one.
func (e *FieldError) Error() string {
	if e.Key == "" {
		return e.Field + ": " + e.Err.Error()
	}
	return e.Field + "[" + e.Key + "]: " + e.Err.Error()
}

// Unwrap returns Err.
func (e *FieldError) Unwrap() error { return e.Err }

// fieldErrors collects what is wrong.
type fieldErrors []error

func (f *fieldErrors) check(field, key string, err error) {
	if err != nil {
		*f = append(*f, &FieldError{field, key, err})
	}
}

// Validate returns everything that is wrong with c, a join of [*FieldError], or nil.
func (c *Config) Validate() error {
	var f fieldErrors
	f.check("Mode", "", check.OneOf(c.Mode, Observe, Augment, Own))
	f.check("NodeName", "", check.NodeName(c.NodeName))
	for _, path := range []struct{ field, value string }{
		{"Procfs", c.Procfs}, {"Sysfs", c.Sysfs}, {"Rootfs", c.Rootfs}, {"RootDirectory", c.RootDirectory},
	} {
		f.check(path.field, "", check.Absolute(path.value))
	}
	for i, dir := range c.ImageDirectories {
		f.check("ImageDirectories", fmt.Sprint(i), check.Absolute(dir))
	}
	f.check("SampleInterval", "", check.Between(c.SampleInterval, 100*time.Millisecond, time.Hour))
	f.check("StatfsTimeout", "", check.Between(c.StatfsTimeout, 10*time.Millisecond, time.Minute))
	f.check("TransitionPeriod", "", check.AtLeast(c.TransitionPeriod, 0))
	if c.ConditionHeartbeat != 0 {
		f.check("ConditionHeartbeat", "", check.AtLeast(c.ConditionHeartbeat, 10*time.Second))
	}
	validThresholds(&f, "Thresholds", c.Thresholds)
	c.validateConditions(&f)
	f.check("FieldManager", "", check.FieldManager(c.FieldManager))
	if !check.Sendable(c.Version) {
		f.check("Version", "", fmt.Errorf("%q cannot be part of a user agent: use printable characters", check.Cut(c.Version)))
	}
	switch {
	case !c.writesOrReads():
	case c.API == nil:
		f.check("API", "", fmt.Errorf("mode %s needs an API server", c.Mode))
	case c.API.Host == "": // client-go would take localhost:8080
		f.check("API", "", errors.New("Host is empty; set the address of the API server"))
	}
	c.validateNode(&f)
	return errors.Join(f...)
}

// validateNode checks what mode Own needs. It is wrong in any mode: a value that
// cannot be right is a mistake wherever it stands.
func (c *Config) validateNode(f *fieldErrors) {
	f.check("StatusUpdateFrequency", "", check.AtLeast(c.StatusUpdateFrequency, time.Second))
	f.check("StatusReportFrequency", "", check.AtLeast(c.StatusReportFrequency, time.Second))
	f.check("LeaseDuration", "", check.LeaseDuration(c.LeaseDuration))
	for _, key := range slices.Sorted(maps.Keys(c.Labels)) {
		f.check("Labels", key, check.Label(key, c.Labels[key]))
	}
	for _, key := range slices.Sorted(maps.Keys(c.Annotations)) {
		// The domain of an annotation may have capitals, where that of a label may not.
		if len(validation.IsQualifiedName(strings.ToLower(key))) > 0 {
			f.check("Annotations", key, check.QualifiedName(key))
		}
	}
	for i := range c.Taints {
		err := check.Taint(&c.Taints[i])
		if err == nil && slices.ContainsFunc(c.Taints[:i], func(other v1.Taint) bool { return other.MatchTaint(&c.Taints[i]) }) {
			err = fmt.Errorf("a second taint with key %q and effect %q", c.Taints[i].Key, c.Taints[i].Effect)
		}
		f.check("Taints", fmt.Sprint(i), err)
	}
	for _, name := range slices.Sorted(maps.Keys(c.VolumeLimits)) {
		f.check("VolumeLimits", string(name), cmp.Or(check.QualifiedName(string(name)), check.AtLeast(c.VolumeLimits[name], 0)))
	}
	f.check("NodeIPs", "", check.NodeIPs(c.NodeIPs))
	f.check("MaxPods", "", check.AtLeast(c.MaxPods, 0))
	f.check("PodsPerCore", "", check.AtLeast(c.PodsPerCore, 0))
	reserved(f, "SystemReserved", c.SystemReserved)
	reserved(f, "KubeReserved", c.KubeReserved)
	validThresholds(f, "EvictionReserved", c.EvictionReserved)
	f.check("RuntimeEndpoint", "", check.Socket(c.RuntimeEndpoint))
	f.check("ImageEndpoint", "", check.Socket(c.ImageEndpoint))
	if c.ImageEndpoint != "" && c.RuntimeEndpoint == "" {
		f.check("ImageEndpoint", "", errors.New("is set, but the endpoint of the container runtime is not"))
	}
	f.check("MaxImages", "", check.AtLeast(c.MaxImages, -1))
	if c.KubeletVersion != "" && c.KubeletVersion != c.Version { // which is the default, whatever a build is called
		if _, err := utilversion.ParseSemantic(c.KubeletVersion); err != nil {
			f.check("KubeletVersion", "", fmt.Errorf("%q is not a semantic version such as v1.36.0", check.Cut(c.KubeletVersion)))
		}
	}
	f.check("Port", "", check.Between(c.Port, 1, 65535))
	f.check("ShutdownGracePeriod", "", check.Between(c.ShutdownGracePeriod, 0, time.Hour))
	for i, set := range c.Setters {
		if set == nil {
			f.check("Setters", fmt.Sprint(i), errors.New("is nil"))
		}
	}
}

func (c *Config) validateConditions(f *fieldErrors) {
	if n := len(c.Conditions); n > status.MaxConditions {
		f.check("Conditions", "", fmt.Errorf("%d conditions, of which at most %d fit on a Node", n, status.MaxConditions))
	}
	for i := range c.Conditions {
		rule := &c.Conditions[i]
		for _, err := range check.Condition(rule) {
			f.check("Conditions", rule.Type, err)
		}
		if slices.ContainsFunc(c.Conditions[:i], func(other pressure.Rule) bool { return other.Type == rule.Type }) {
			f.check("Conditions", rule.Type, errors.New("a second condition of this type"))
		}
	}
}

// validThresholds checks those that Parse may not have made. The same twice would be two
// series of metrics with one name.
func validThresholds(f *fieldErrors, field string, list []pressure.Threshold) {
	for i, t := range list {
		err := t.Validate()
		if err == nil && slices.Contains(list[:i], t) {
			err = fmt.Errorf("a second threshold %v", t)
		}
		f.check(field, fmt.Sprint(i), err)
	}
}

func reserved(f *fieldErrors, field string, list v1.ResourceList) {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q := list[name]
		err := check.OneOf(name, v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, "pid")
		if err == nil && q.Sign() < 0 {
			err = fmt.Errorf("%s is negative", q.String())
		}
		f.check(field, string(name), err)
	}
}

// writesOrReads reports whether the configuration needs an API server.
func (c *Config) writesOrReads() bool { return c.Mode != Observe || c.Shadow }

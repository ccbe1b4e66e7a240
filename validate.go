package nodeprobe

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/nodeprobe/nodeprobe/probe/cri"
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
	f.check("Mode", "", oneOf(c.Mode, Observe, Augment, Own))
	f.check("NodeName", "", nodeName(c.NodeName))
	for _, path := range []struct{ field, value string }{
		{"Procfs", c.Procfs}, {"Sysfs", c.Sysfs}, {"Rootfs", c.Rootfs}, {"RootDirectory", c.RootDirectory},
	} {
		f.check(path.field, "", absolute(path.value))
	}
	for i, dir := range c.ImageDirectories {
		f.check("ImageDirectories", fmt.Sprint(i), absolute(dir))
	}
	f.check("SampleInterval", "", between(c.SampleInterval, 100*time.Millisecond, time.Hour))
	f.check("StatfsTimeout", "", between(c.StatfsTimeout, 10*time.Millisecond, time.Minute))
	f.check("TransitionPeriod", "", atLeast(c.TransitionPeriod, 0))
	if c.ConditionHeartbeat != 0 {
		f.check("ConditionHeartbeat", "", atLeast(c.ConditionHeartbeat, 10*time.Second))
	}
	validThresholds(&f, "Thresholds", c.Thresholds)
	c.validateConditions(&f)
	f.check("FieldManager", "", fieldManager(c.FieldManager))
	if !sendable(c.Version) {
		f.check("Version", "", fmt.Errorf("%q cannot be part of a user agent: use printable characters", cut(c.Version)))
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
	f.check("StatusUpdateFrequency", "", atLeast(c.StatusUpdateFrequency, time.Second))
	f.check("StatusReportFrequency", "", atLeast(c.StatusReportFrequency, time.Second))
	f.check("LeaseDuration", "", leaseDuration(c.LeaseDuration))
	for _, key := range slices.Sorted(maps.Keys(c.Labels)) {
		f.check("Labels", key, label(key, c.Labels[key]))
	}
	for _, key := range slices.Sorted(maps.Keys(c.Annotations)) {
		// The domain of an annotation may have capitals, where that of a label may not.
		if len(validation.IsQualifiedName(strings.ToLower(key))) > 0 {
			f.check("Annotations", key, qualifiedName(key))
		}
	}
	for i := range c.Taints {
		err := taint(&c.Taints[i])
		if err == nil && slices.ContainsFunc(c.Taints[:i], func(other v1.Taint) bool { return other.MatchTaint(&c.Taints[i]) }) {
			err = fmt.Errorf("a second taint with key %q and effect %q", c.Taints[i].Key, c.Taints[i].Effect)
		}
		f.check("Taints", fmt.Sprint(i), err)
	}
	for _, name := range slices.Sorted(maps.Keys(c.VolumeLimits)) {
		f.check("VolumeLimits", string(name), cmp.Or(qualifiedName(string(name)), atLeast(c.VolumeLimits[name], 0)))
	}
	f.check("NodeIPs", "", nodeIPs(c.NodeIPs))
	f.check("MaxPods", "", atLeast(c.MaxPods, 0))
	f.check("PodsPerCore", "", atLeast(c.PodsPerCore, 0))
	reserved(f, "SystemReserved", c.SystemReserved)
	reserved(f, "KubeReserved", c.KubeReserved)
	validThresholds(f, "EvictionReserved", c.EvictionReserved)
	f.check("RuntimeEndpoint", "", socket(c.RuntimeEndpoint))
	f.check("ImageEndpoint", "", socket(c.ImageEndpoint))
	if c.ImageEndpoint != "" && c.RuntimeEndpoint == "" {
		f.check("ImageEndpoint", "", errors.New("is set, but the endpoint of the container runtime is not"))
	}
	f.check("MaxImages", "", atLeast(c.MaxImages, -1))
	if c.KubeletVersion != "" && c.KubeletVersion != c.Version { // which is the default, whatever a build is called
		if _, err := utilversion.ParseSemantic(c.KubeletVersion); err != nil {
			f.check("KubeletVersion", "", fmt.Errorf("%q is not a semantic version such as v1.36.0", cut(c.KubeletVersion)))
		}
	}
	f.check("Port", "", between(c.Port, 1, 65535))
	f.check("ShutdownGracePeriod", "", between(c.ShutdownGracePeriod, 0, time.Hour))
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
		for _, err := range conditionErrors(rule) {
			f.check("Conditions", rule.Type, err)
		}
		if slices.ContainsFunc(c.Conditions[:i], func(other pressure.Rule) bool { return other.Type == rule.Type }) {
			f.check("Conditions", rule.Type, errors.New("a second condition of this type"))
		}
	}
}

// conditionErrors returns everything that is wrong with a condition of one's own.
func conditionErrors(r *pressure.Rule) (errs []error) {
	add := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	if slices.Contains(status.BuiltIn, v1.NodeConditionType(r.Type)) {
		add(fmt.Errorf("a kubelet writes this condition; choose a type of your own, such as example.com/%s", r.Type))
	}
	add(qualifiedName(r.Type))
	if len(r.When) == 0 {
		add(errors.New("when: is empty, so that the condition would never be True"))
	}
	if slices.ContainsFunc(r.When, func(c pressure.Clause) bool { return len(c) == 0 }) {
		add(errors.New("when: a clause is empty, so that the condition would always be True"))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"for", r.For}, {"hold", r.Hold}} {
		if err := atLeast(d.value, 0); err != nil {
			add(fmt.Errorf("%s: %w", d.name, err))
		}
	}
	for _, reason := range []struct{ name, value string }{{"reason", r.Reason}, {"okReason", r.OKReason}} {
		if err := status.CheckReason(reason.value); err != nil {
			add(fmt.Errorf("%s: %w", reason.name, err))
		}
	}
	return errs
}

func nodeName(name string) error {
	if len(validation.IsDNS1123Subdomain(name)) == 0 {
		return nil
	}
	return fmt.Errorf("%q is not the name of a node: use lower-case letters, digits, '-' and '.', such as %s", cut(name), similarName(name))
}

// similarName returns the name of a node that is like one that is not valid.
func similarName(name string) string {
	similar := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, name)
	similar = strings.Trim(similar, "-.")
	if len(validation.IsDNS1123Subdomain(similar)) > 0 {
		return "node-1.example.com"
	}
	return similar
}

// cut shortens a value for a message.
func cut(value string) string {
	const limit = 100
	if len(value) <= limit {
		return value
	}
	return value[:limit] + "…"
}

func fieldManager(name string) error {
	switch {
	case strings.ContainsAny(name, "/ ") || len(name) > 128 || !sendable(name):
		return fmt.Errorf("%q is not a field manager: use one word of at most 128 characters without '/'", cut(name))
	case strings.Contains(name, "kubelet"):
		return fmt.Errorf("%q would be taken for a kubelet; choose another name", name)
	}
	return nil
}

// sendable reports whether text can be sent in a header. Of a field manager, the API
// server drops all else.
func sendable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
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

// nodeIPs checks that there is none, one, or one of each family.
func nodeIPs(ips []net.IP) error {
	for _, ip := range ips {
		if ip.To16() == nil {
			return fmt.Errorf("%q is not an IP address", ip.String())
		}
		if len(ips) > 1 && ip.IsUnspecified() {
			return fmt.Errorf("%s stands for any address of its family, and must stand alone", ip)
		}
	}
	if len(ips) > 2 || len(ips) == 2 && (ips[0].To4() == nil) == (ips[1].To4() == nil) {
		return fmt.Errorf("%d addresses; give one, or one of each family", len(ips))
	}
	return nil
}

func leaseDuration(d time.Duration) error {
	if d%time.Second != 0 {
		return fmt.Errorf("%v is not a whole number of seconds", d)
	}
	return between(d, time.Second, (1<<31-1)*time.Second)
}

func label(key, value string) error {
	if err := qualifiedName(key); err != nil {
		return err
	}
	if len(validation.IsValidLabelValue(value)) > 0 {
		return fmt.Errorf("value %q: use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends", cut(value))
	}
	return nil
}

func qualifiedName(name string) error {
	if len(validation.IsQualifiedName(name)) == 0 {
		return nil
	}
	why := "use letters, digits, '-', '_' and '.', with a letter or digit at both ends"
	prefix, base, hasPrefix := strings.Cut(name, "/")
	if !hasPrefix {
		base = prefix
	}
	switch {
	case hasPrefix && len(validation.IsDNS1123Subdomain(prefix)) > 0:
		why = "what stands before '/' is not a domain"
	case strings.Contains(base, "/"):
		why = "it has more than one '/'"
	case len(base) > maxNamePart:
		why = fmt.Sprintf("%d characters, of which at most %d are allowed after '/'", len(base), maxNamePart)
	}
	return fmt.Errorf("%q is not a qualified name such as example.com/rack: %s", cut(name), why)
}

// maxNamePart is how long a name is at most, without its domain.
const maxNamePart = 63

func taint(t *v1.Taint) error {
	if err := label(t.Key, t.Value); err != nil {
		return err
	}
	if err := oneOf(t.Effect, v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute); err != nil {
		return fmt.Errorf("effect: %w", err)
	}
	return nil
}

func reserved(f *fieldErrors, field string, list v1.ResourceList) {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q := list[name]
		err := oneOf(name, v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, "pid")
		if err == nil && q.Sign() < 0 {
			err = fmt.Errorf("%s is negative", q.String())
		}
		f.check(field, string(name), err)
	}
}

// socket checks the address of a socket; "" is none.
func socket(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	_, err := cri.SocketPath(endpoint)
	return err
}

func absolute(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%q is not an absolute path", path)
	}
	return nil
}

func oneOf[T ~string](value T, allowed ...T) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	texts := make([]string, len(allowed))
	for i, a := range allowed {
		texts[i] = fmt.Sprintf("%q", a)
	}
	return fmt.Errorf("%q is not %s", value, strings.Join(texts, " or "))
}

func atLeast[T cmp.Ordered](value, least T) error {
	if value < least {
		return fmt.Errorf("%v is less than %v", value, least)
	}
	return nil
}

func between[T cmp.Ordered](value, least, most T) error {
	if value > most {
		return fmt.Errorf("%v is more than %v", value, most)
	}
	return atLeast(value, least)
}

// writesOrReads reports whether the configuration needs an API server.
func (c *Config) writesOrReads() bool { return c.Mode != Observe || c.Shadow }

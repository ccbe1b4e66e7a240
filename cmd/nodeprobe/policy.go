package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
)

// policy is what a configuration means: its texts parsed into values.
type policy struct {
	nodeName   string
	thresholds []pressure.Threshold
	notes      []pressure.Note
	resources  status.Resources
	nodeIPs    []net.IP
	taints     []v1.Taint
	logLevel   slog.Level
}

// policy parses every field, and returns all problems rather than the first.
func (c *config) policy() (*policy, []problem) {
	p := &policy{}
	var problems []problem
	check := func(field, key string, err error) {
		if err != nil {
			problems = append(problems, problem{field, key, err})
		}
	}
	check("apiVersion", "", oneOf(c.APIVersion, apiVersion))
	check("kind", "", oneOf(c.Kind, kind))
	if c.Mode == modeAugment {
		check("mode", "", errors.New("augment is not there yet; use observe, or own where no kubelet runs"))
	} else {
		check("mode", "", oneOf(c.Mode, modeObserve, modeOwn))
	}
	check("bpf", "", oneOf(c.BPF, "auto", "off"))
	check("cloudProvider", "", oneOf(c.CloudProvider, "", "external"))
	check("logFormat", "", oneOf(c.LogFormat, "text", "json"))
	check("logLevel", "", p.logLevel.UnmarshalText([]byte(c.LogLevel)))

	var err error
	p.nodeName, err = resolveNodeName(c.NodeName)
	check("nodeName", "", err)
	p.nodeIPs, err = status.ParseNodeIPs(c.NodeIP)
	check("nodeIP", "", err)

	check("sampleInterval", "", atLeast(c.SampleInterval, 100*time.Millisecond))
	check("statfsTimeout", "", atLeast(c.StatfsTimeout, 10*time.Millisecond))
	check("nodeStatusUpdateFrequency", "", atLeast(c.NodeStatusUpdateFrequency, time.Second))
	check("nodeStatusReportFrequency", "", atLeast(c.NodeStatusReportFrequency, time.Second))
	check("nodeLeaseDurationSeconds", "", atLeast(c.NodeLeaseDurationSeconds, 1))
	check("maxPods", "", atLeast(c.MaxPods, 0))
	check("podsPerCore", "", atLeast(c.PodsPerCore, 0))
	check("port", "", atLeast(c.Port, 1))
	if c.Port > 65535 {
		check("port", "", fmt.Errorf("%d is more than 65535", c.Port))
	}
	check("rootDirectory", "", absolute(c.RootDirectory))
	for i, dir := range c.ImageDirectories {
		check("imageDirectories", fmt.Sprint(i), absolute(dir))
	}
	if c.WebListenAddress != "" {
		_, _, err := net.SplitHostPort(c.WebListenAddress)
		check("webListenAddress", "", err)
	}
	for _, key := range sortedKeys(c.NodeLabels) {
		check("nodeLabels", key, validLabel(key, c.NodeLabels[key]))
	}
	for i, t := range c.RegisterWithTaints {
		parsed, err := t.parse()
		check("registerWithTaints", fmt.Sprint(i), err)
		p.taints = append(p.taints, parsed)
	}
	problems = append(problems, p.parseThresholds(c)...)
	problems = append(problems, p.parseResources(c)...)
	return p, problems
}

func (p *policy) parseThresholds(c *config) []problem {
	var err error
	p.thresholds, p.notes, err = pressure.Parse(pressure.Config{
		Hard:             c.EvictionHard,
		Soft:             c.EvictionSoft,
		SoftGracePeriod:  c.EvictionSoftGracePeriod,
		MinimumReclaim:   c.EvictionMinimumReclaim,
		TransitionPeriod: c.EvictionPressureTransitionPeriod,
	})
	var problems []problem
	for _, err := range unjoin(err) {
		if field := (*pressure.FieldError)(nil); errors.As(err, &field) {
			problems = append(problems, problem{field.Field, field.Key, field.Err})
		}
	}
	return problems
}

func (p *policy) parseResources(c *config) []problem {
	var problems []problem
	parse := func(field, flag string, texts map[string]string) v1.ResourceList {
		list := v1.ResourceList{}
		for _, key := range sortedKeys(texts) {
			q, err := parseReserved(key, flag, texts[key])
			if err != nil {
				problems = append(problems, problem{field, key, err})
				continue
			}
			list[v1.ResourceName(key)] = q
		}
		return list
	}
	// Only the hard thresholds are reserved, and of a soft one that has no grace
	// period the evaluator makes a hard one.
	hard, _, _ := pressure.Parse(pressure.Config{Hard: c.EvictionHard})
	p.resources = status.Resources{
		MaxPods: c.MaxPods, PodsPerCore: c.PodsPerCore,
		SystemReserved:                parse("systemReserved", "--system-reserved", c.SystemReserved),
		KubeReserved:                  parse("kubeReserved", "--kube-reserved", c.KubeReserved),
		Thresholds:                    hard,
		LocalStorageCapacityIsolation: c.LocalStorageCapacityIsolation,
	}
	return problems
}

// parseReserved reads one entry of systemReserved or kubeReserved, with the
// kubelet's errors.
func parseReserved(key, flag, text string) (resource.Quantity, error) {
	wrong := func(format string, args ...any) (resource.Quantity, error) {
		return resource.Quantity{}, fmt.Errorf(flag+" value failed to parse: "+format, args...)
	}
	switch v1.ResourceName(key) {
	case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, "pid":
	default:
		return wrong("cannot reserve %q resource", key)
	}
	q, err := pressure.ParseQuantity(text)
	switch {
	case err != nil:
		return wrong("failed to parse quantity %q for %q resource: %w", text, key, err)
	case q.Sign() < 0:
		return wrong("resource quantity for %q cannot be negative: %s", key, text)
	}
	return q, nil
}

func (t taint) parse() (v1.Taint, error) {
	effect := v1.TaintEffect(t.Effect)
	if reasons := validation.IsQualifiedName(t.Key); len(reasons) > 0 {
		return v1.Taint{}, fmt.Errorf("key %q: %s", t.Key, strings.Join(reasons, ", "))
	}
	if reasons := validation.IsValidLabelValue(t.Value); len(reasons) > 0 {
		return v1.Taint{}, fmt.Errorf("value %q: %s", t.Value, strings.Join(reasons, ", "))
	}
	if err := oneOf(effect, v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute); err != nil {
		return v1.Taint{}, fmt.Errorf("effect: %w", err)
	}
	return v1.Taint{Key: t.Key, Value: t.Value, Effect: effect}, nil
}

// resolveNodeName follows node-problem-detector: what is configured, else
// NODE_NAME, which a DaemonSet sets, else the hostname.
func resolveNodeName(name string) (string, error) {
	if name == "" {
		name = os.Getenv("NODE_NAME")
	}
	if name == "" {
		hostname, err := os.Hostname()
		if err != nil {
			return "", err
		}
		name = hostname
	}
	name = strings.ToLower(strings.TrimSpace(name))
	if reasons := validation.IsDNS1123Subdomain(name); len(reasons) > 0 {
		return "", fmt.Errorf("%q is not the name of a node: %s", name, strings.Join(reasons, ", "))
	}
	return name, nil
}

func validLabel(key, value string) error {
	if reasons := validation.IsQualifiedName(key); len(reasons) > 0 {
		return errors.New(strings.Join(reasons, ", "))
	}
	if reasons := validation.IsValidLabelValue(value); len(reasons) > 0 {
		return fmt.Errorf("%q: %s", value, strings.Join(reasons, ", "))
	}
	return nil
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

func atLeast[T time.Duration | int32 | int64](value, least T) error {
	if value < least {
		return fmt.Errorf("%v is less than %v", value, least)
	}
	return nil
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// unjoin returns the errors that were joined into err.
func unjoin(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // exactly this error, not one inside it
		return joined.Unwrap()
	}
	return []error{err}
}

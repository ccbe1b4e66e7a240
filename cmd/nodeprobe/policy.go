package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/cpuset"

	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status/node"
)

// policy is what a configuration means: its texts parsed into values.
type policy struct {
	nodeName   string
	thresholds []pressure.Threshold
	rules      []pressure.Rule
	notes      []pressure.Note
	remarks    remarks // on a kubelet's files
	resources  node.Resources
	reserved   cpuset.CPUSet // CPUs
	nodeIPs    []net.IP
	taints     []v1.Taint
	logLevel   slog.Level

	volumeLimits node.VolumeLimits
}

// policy parses every field, and returns all problems rather than the first.
func (c *config) policy() (*policy, []problem) {
	p := &policy{}
	var problems []problem
	check := func(field, key string, err error) {
		if err != nil {
			problems = append(problems, problem{field: field, key: key, err: err})
		}
	}
	check("apiVersion", "", oneOf(c.APIVersion, apiVersion))
	check("kind", "", oneOf(c.Kind, kind))
	check("mode", "", oneOf(c.Mode, modeObserve, modeAugment, modeOwn))
	check("conditionsOnExit", "", oneOf(c.ConditionsOnExit, "remove", "keep"))
	if c.ConditionHeartbeat != 0 {
		check("conditionHeartbeat", "", atLeast(c.ConditionHeartbeat, 10*time.Second))
	}
	check("bpf", "", oneOf(c.BPF, "auto", "off"))
	check("cloudProvider", "", oneOf(c.CloudProvider, "", "external"))
	check("logFormat", "", oneOf(c.LogFormat, "text", "json"))
	check("logLevel", "", oneOf(c.LogLevel, "debug", "info", "warn", "error"))
	_ = p.logLevel.UnmarshalText([]byte(c.LogLevel)) // knows these four

	var err error
	p.nodeName, err = resolveNodeName(c.NodeName)
	check("nodeName", "", err)
	p.nodeIPs, err = node.ParseNodeIPs(c.NodeIP)
	check("nodeIP", "", err)

	check("sampleInterval", "", between(c.SampleInterval, 100*time.Millisecond, time.Hour))
	check("statfsTimeout", "", between(c.StatfsTimeout, 10*time.Millisecond, time.Minute))
	check("nodeStatusUpdateFrequency", "", atLeast(c.NodeStatusUpdateFrequency, time.Second))
	check("nodeStatusReportFrequency", "", atLeast(c.NodeStatusReportFrequency, time.Second))
	check("nodeLeaseDurationSeconds", "", atLeast(c.NodeLeaseDurationSeconds, 1))
	check("containerRuntimeEndpoint", "", socket(c.ContainerRuntimeEndpoint))
	check("imageServiceEndpoint", "", socket(c.ImageServiceEndpoint))
	if c.ImageServiceEndpoint != "" && c.ContainerRuntimeEndpoint == "" {
		check("imageServiceEndpoint", "", errors.New("there is no containerRuntimeEndpoint"))
	}
	check("nodeStatusMaxImages", "", atLeast(c.NodeStatusMaxImages, -1))
	check("shutdownGracePeriod", "", between(c.ShutdownGracePeriod, 0, time.Hour))
	check("maxPods", "", atLeast(c.MaxPods, 0))
	check("podsPerCore", "", atLeast(c.PodsPerCore, 0))
	check("port", "", between(c.Port, 1, 65535))
	check("rootDirectory", "", absolute(c.RootDirectory))
	for i, dir := range c.ImageDirectories {
		check("imageDirectories", fmt.Sprint(i), absolute(dir))
	}
	check("webListenAddress", "", listenAddress(c.WebListenAddress))
	check("webHealthListenAddress", "", listenAddress(c.WebHealthListenAddress))
	if c.KubeletVersion != "" {
		_, err := utilversion.ParseSemantic(c.KubeletVersion)
		check("kubeletVersion", "", err)
	}
	for _, key := range slices.Sorted(maps.Keys(c.NodeLabels)) {
		check("nodeLabels", key, validLabel(key, c.NodeLabels[key]))
	}
	for i, what := range c.EnforceNodeAllocatable {
		check("enforceNodeAllocatable", fmt.Sprint(i), oneOf(what, "pods", "none", "system-reserved", "system-reserved-compressible", "kube-reserved", "kube-reserved-compressible"))
	}
	for i, t := range c.RegisterWithTaints {
		parsed, err := t.parse()
		if slices.ContainsFunc(p.taints, func(other v1.Taint) bool { return other.MatchTaint(&parsed) }) {
			err = fmt.Errorf("key %q and effect %q are there already", t.Key, t.Effect)
		}
		check("registerWithTaints", fmt.Sprint(i), err)
		if err == nil {
			p.taints = append(p.taints, parsed)
		}
	}
	problems = append(problems, p.parseThresholds(c)...)
	problems = append(problems, p.parseConditions(c)...)
	problems = append(problems, p.parseResources(c)...)
	problems = append(problems, p.parseVolumeLimits(c)...)
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

		EnforceNodeAllocatable: c.EnforceNodeAllocatable,
	})
	var problems []problem
	for _, err := range unjoin(err) {
		if field := (*pressure.FieldError)(nil); errors.As(err, &field) {
			problems = append(problems, problem{field: field.Field, key: field.Key, err: field.Err})
		}
	}
	return problems
}

func (p *policy) parseResources(c *config) []problem {
	var problems []problem
	parse := func(field, flag string, texts map[string]string) v1.ResourceList {
		list := v1.ResourceList{}
		for _, key := range slices.Sorted(maps.Keys(texts)) {
			q, err := parseReserved(key, flag, texts[key])
			if err != nil {
				problems = append(problems, problem{field: field, key: key, err: err})
				continue
			}
			list[v1.ResourceName(key)] = q
		}
		return list
	}
	var err error
	if p.reserved, err = cpuset.Parse(c.ReservedSystemCPUs); err != nil {
		problems = append(problems, problem{field: "reservedSystemCPUs", err: fmt.Errorf("%q is not a list of CPUs such as 0-1,8", c.ReservedSystemCPUs)})
	}
	// Only the hard thresholds are reserved, and of a soft one that has no grace
	// period the evaluator makes a hard one.
	hard, _, _ := pressure.Parse(pressure.Config{Hard: c.EvictionHard})
	p.resources = node.Resources{
		MaxPods: c.MaxPods, PodsPerCore: c.PodsPerCore,
		SystemReserved:                parse("systemReserved", "--system-reserved", c.SystemReserved),
		KubeReserved:                  parse("kubeReserved", "--kube-reserved", c.KubeReserved),
		Thresholds:                    hard,
		LocalStorageCapacityIsolation: c.LocalStorageCapacityIsolation,
	}
	if n := p.reserved.Size(); n > 0 {
		p.resources.SystemReserved[v1.ResourceCPU] = *resource.NewQuantity(int64(n), resource.DecimalSI)
		delete(p.resources.KubeReserved, v1.ResourceCPU)
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
	source := ""
	if name == "" {
		name, source = os.Getenv("NODE_NAME"), "environment variable NODE_NAME: "
	}
	if name == "" {
		hostname, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("find hostname: %w", err)
		}
		name, source = hostname, "hostname: "
	}
	name = strings.ToLower(strings.TrimSpace(name))
	if reasons := validation.IsDNS1123Subdomain(name); len(reasons) > 0 {
		return "", fmt.Errorf("%s%q is not the name of a node: %s", source, name, strings.Join(reasons, ", "))
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

// listenAddress checks what net.Listen is to get; "" is no address at all.
func listenAddress(address string) error {
	if address == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("address %s: %q is not a port", address, port)
	}
	return nil
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

// number is what a limit can be set to.
type number interface{ time.Duration | int32 | int64 }

func atLeast[T number](value, least T) error {
	if value < least {
		return fmt.Errorf("%v is less than %v", value, least)
	}
	return nil
}

func between[T number](value, least, most T) error {
	if value > most {
		return fmt.Errorf("%v is more than %v", value, most)
	}
	return atLeast(value, least)
}

// unjoin returns the errors that were joined into err.
func unjoin(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

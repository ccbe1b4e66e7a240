package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status/node"
)

// resolver parses the texts of a file, and collects everything that is wrong.
type resolver struct {
	*file
	loaded   *Loaded
	notes    []pressure.Note
	problems []problem
}

func (r *resolver) check(field, key string, err error) {
	if err != nil {
		r.problems = append(r.problems, problem{field: field, key: key, err: err})
	}
}

// resolve returns what the file means over base, from which the agent's fields come that
// no file has. Where something is wrong it is not to be used.
func (f *file) resolve(base nodeprobe.Config) (*Loaded, []pressure.Note, []problem) {
	copied := *f
	r := resolver{file: &copied, loaded: &Loaded{
		Agent:            base,
		Web:              Web{f.WebListenAddress, f.WebHealthListenAddress, f.WebConfigFile},
		Kubeconfig:       f.Kubeconfig,
		ImpersonateNode:  f.ImpersonateNode,
		DropCapabilities: f.DropCapabilities,
		OOMScoreAdj:      int(f.OOMScoreAdj),
		LogFormat:        f.LogFormat,
		file:             copied,
	}}
	r.command()
	r.process()
	r.plain()
	r.thresholds()
	r.conditions()
	r.node()
	r.validate()
	return r.loaded, r.notes, r.problems
}

// command is about what the command does, not the agent.
func (r *resolver) command() {
	r.check("apiVersion", "", oneOf(r.APIVersion, apiVersion))
	r.check("kind", "", oneOf(r.Kind, kind))
	r.check("webListenAddress", "", listenAddress(r.WebListenAddress))
	r.check("webHealthListenAddress", "", healthAddress(r.WebHealthListenAddress, r.WebListenAddress))
	r.check("logFormat", "", oneOf(r.LogFormat, "text", "json"))
	r.check("logLevel", "", oneOf(r.LogLevel, "debug", "info", "warn", "error"))
	_ = r.loaded.LogLevel.UnmarshalText([]byte(r.LogLevel)) // knows these four
}

// process is about the command's own process.
func (r *resolver) process() {
	limit, err := lockedMemoryLimit(r.LockedMemoryLimit)
	r.check("lockedMemoryLimit", "", err)
	r.loaded.LockedMemoryLimit = limit
	if r.OOMScoreAdj < -1000 || r.OOMScoreAdj > 1000 {
		r.check("oomScoreAdj", "", fmt.Errorf("%d is not between -1000 and 1000", r.OOMScoreAdj))
	}
}

// plain copies what needs no parsing.
func (r *resolver) plain() {
	a := &r.loaded.Agent
	a.Mode = nodeprobe.Mode(r.Mode)
	a.SampleInterval, a.StatfsTimeout = r.SampleInterval, r.StatfsTimeout
	a.RootDirectory, a.ImageDirectories = r.RootDirectory, r.ImageDirectories
	a.TransitionPeriod = r.EvictionPressureTransitionPeriod
	a.ConditionHeartbeat = r.ConditionHeartbeat
	a.Shadow = r.Shadow
	a.FieldManager = r.FieldManager
	a.StatusUpdateFrequency, a.StatusReportFrequency = r.NodeStatusUpdateFrequency, r.NodeStatusReportFrequency
	if r.NodeLeaseDurationSeconds < 1 {
		r.check("nodeLeaseDurationSeconds", "", fmt.Errorf("%d is less than 1", r.NodeLeaseDurationSeconds))
	}
	a.LeaseDuration = time.Duration(r.NodeLeaseDurationSeconds) * time.Second
	a.Register = r.RegisterNode
	a.Labels, a.Annotations = r.NodeLabels, r.NodeAnnotations
	a.ProviderID = r.ProviderID
	a.ControllerAttachDetach = r.EnableControllerAttachDetach
	a.VolumeLimitsFromCSINode = r.VolumeLimitsFromCSINode
	a.MaxPods, a.PodsPerCore = r.MaxPods, r.PodsPerCore
	a.LocalStorageCapacityIsolation = r.LocalStorageCapacityIsolation
	a.RuntimeEndpoint, a.ImageEndpoint = r.ContainerRuntimeEndpoint, r.ImageServiceEndpoint
	a.MaxImages = int(r.NodeStatusMaxImages)
	a.KubeletVersion, a.Port = r.KubeletVersion, r.Port
	a.ShutdownGracePeriod = r.ShutdownGracePeriod
	a.ExitMessage = r.ExitMessage

	r.check("bpf", "", oneOf(r.BPF, "auto", "off"))
	a.DisableBPF = r.BPF == "off"
	r.check("conditionsOnExit", "", oneOf(r.ConditionsOnExit, "remove", "keep"))
	a.RemoveConditions = r.ConditionsOnExit == "remove"
	r.check("cloudProvider", "", oneOf(r.CloudProvider, "", "external"))
	a.ExternalCloudProvider = r.CloudProvider == "external"
}

func (r *resolver) thresholds() {
	eviction := pressure.Config{
		Hard:                   r.EvictionHard,
		Soft:                   r.EvictionSoft,
		SoftGracePeriod:        r.EvictionSoftGracePeriod,
		MinimumReclaim:         r.EvictionMinimumReclaim,
		EnforceNodeAllocatable: r.EnforceNodeAllocatable,
	}
	texts := map[string]map[string]string{
		pressure.FieldHard:            eviction.Hard,
		pressure.FieldSoft:            eviction.Soft,
		pressure.FieldSoftGracePeriod: eviction.SoftGracePeriod,
		pressure.FieldMinimumReclaim:  eviction.MinimumReclaim,
	}
	var err error
	r.loaded.Agent.Thresholds, r.notes, err = pressure.Parse(eviction)
	for _, err := range unjoin(err) {
		if field, ok := errors.AsType[*pressure.FieldError](err); ok {
			r.check(field.Field, field.Key, explain(texts[field.Field][field.Key], field.Err))
		}
	}
	// Only the hard thresholds are reserved, and of a soft one that has no grace period
	// the parser makes a hard one.
	r.loaded.Agent.EvictionReserved, _, _ = pressure.Parse(pressure.Config{Hard: r.EvictionHard})
	for i, what := range r.EnforceNodeAllocatable {
		r.check("enforceNodeAllocatable", fmt.Sprint(i), oneOf(what, "pods", "none", "system-reserved", "system-reserved-compressible", "kube-reserved", "kube-reserved-compressible"))
	}
}

// conditions reads the rows in the order of their types. Those that nothing makes True
// are left out.
func (r *resolver) conditions() {
	rules := []pressure.Rule{}
	for _, kind := range slices.Sorted(maps.Keys(r.Conditions)) {
		row := r.Conditions[kind]
		if len(row.When) == 0 {
			continue
		}
		rule := pressure.Rule{Type: kind, For: row.For, Hold: row.Hold, Reason: row.Reason, OKReason: row.OKReason}
		for _, text := range row.When {
			clause, err := pressure.ParseClause(text)
			if err != nil {
				r.check("conditions", kind, fmt.Errorf("when: %w", explainClause(text, err)))
				clause = pressure.Clause{{}} // one mistake, one error
			}
			rule.When = append(rule.When, clause)
		}
		rules = append(rules, rule)
	}
	r.loaded.Agent.Conditions = rules
}

// node is about mode own.
func (r *resolver) node() {
	a := &r.loaded.Agent
	var err error
	a.NodeIPs, err = node.ParseNodeIPs(r.NodeIP)
	r.check("nodeIP", "", err)
	a.Taints = make([]v1.Taint, len(r.RegisterWithTaints))
	for i, t := range r.RegisterWithTaints {
		a.Taints[i] = v1.Taint{Key: t.Key, Value: t.Value, Effect: v1.TaintEffect(t.Effect)}
	}
	if a.ReservedCPUs, err = cpuset.Parse(r.ReservedSystemCPUs); err != nil {
		r.check("reservedSystemCPUs", "", fmt.Errorf("%q is not a list of CPUs such as 0-1,8", r.ReservedSystemCPUs))
	}
	a.SystemReserved = r.quantities("systemReserved", r.SystemReserved)
	a.KubeReserved = r.quantities("kubeReserved", r.KubeReserved)
	a.VolumeLimits = r.volumeLimits()
}

func (r *resolver) quantities(field string, texts map[string]string) v1.ResourceList {
	list := v1.ResourceList{}
	for _, key := range slices.Sorted(maps.Keys(texts)) {
		text := texts[key]
		q, err := pressure.ParseQuantity(text)
		r.check(field, key, explain(text, err))
		list[v1.ResourceName(key)] = q
	}
	return list
}

// validate checks all of the agent's fields. Errors about the node's name tell where that
// comes from if it is not in the file.
func (r *resolver) validate() {
	a := &r.loaded.Agent
	name, source, err := resolveNodeName(r.NodeName)
	r.check("nodeName", "", err)
	a.NodeName = name
	parsed := r.problems
	for _, err := range unjoin(a.Validate()) {
		field, ok := errors.AsType[*nodeprobe.FieldError](err)
		if !ok || field.Field == "API" { // which New checks
			continue
		}
		p := problem{field: fileField(field.Field), key: field.Key, err: field.Err}
		if p.field == "nodeName" && source != "" {
			p.err = fmt.Errorf("%s: %w", source, p.err)
		}
		same := func(other problem) bool { return other.field == p.field && other.key == p.key }
		if p.field != "conditions" && slices.ContainsFunc(parsed, same) {
			continue // what could not be parsed
		}
		r.problems = append(r.problems, p)
	}
}

// fileField returns how a file spells a field of nodeprobe.Config.
func fileField(name string) string {
	if field, ok := goFields[name]; ok {
		return field
	}
	for field := range reflect.TypeFor[file]().Fields() {
		if field.Name == name {
			return field.Tag.Get("yaml")
		}
	}
	return name
}

// resolveNodeName returns the configured name, else NODE_NAME, which a DaemonSet sets,
// else the hostname, as node-problem-detector does; source names the latter two.
func resolveNodeName(name string) (resolved, source string, err error) {
	if name == "" {
		name, source = os.Getenv("NODE_NAME"), "environment variable NODE_NAME"
	}
	if name == "" {
		source = "hostname"
		if name, err = os.Hostname(); err != nil {
			return "", source, fmt.Errorf("find hostname: %w", err)
		}
	}
	return strings.ToLower(strings.TrimSpace(name)), source, nil
}

package main

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// defaultConfig is the reference that "nodeprobe config default" prints, and
// where the defaults come from: there is no second list of them.
//
//go:embed default.yaml
var defaultConfig []byte

const (
	apiVersion = "nodeprobe.dev/v1alpha1"
	kind       = "NodeProbeConfiguration"
)

// config is the configuration file. default.yaml documents each field.
type config struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Mode       string `yaml:"mode"`
	NodeName   string `yaml:"nodeName"`

	SampleInterval   time.Duration `yaml:"sampleInterval"`
	StatfsTimeout    time.Duration `yaml:"statfsTimeout"`
	BPF              string        `yaml:"bpf"`
	RootDirectory    string        `yaml:"rootDirectory"`
	ImageDirectories []string      `yaml:"imageDirectories"`

	EvictionHard                     map[string]string `yaml:"evictionHard"`
	EvictionSoft                     map[string]string `yaml:"evictionSoft"`
	EvictionSoftGracePeriod          map[string]string `yaml:"evictionSoftGracePeriod"`
	EvictionMinimumReclaim           map[string]string `yaml:"evictionMinimumReclaim"`
	EvictionPressureTransitionPeriod time.Duration     `yaml:"evictionPressureTransitionPeriod"`
	EnforceNodeAllocatable           []string          `yaml:"enforceNodeAllocatable"`

	Kubeconfig                    string            `yaml:"kubeconfig"`
	ImpersonateNode               bool              `yaml:"impersonateNode"`
	NodeStatusUpdateFrequency     time.Duration     `yaml:"nodeStatusUpdateFrequency"`
	NodeStatusReportFrequency     time.Duration     `yaml:"nodeStatusReportFrequency"`
	NodeLeaseDurationSeconds      int32             `yaml:"nodeLeaseDurationSeconds"`
	RegisterNode                  bool              `yaml:"registerNode"`
	NodeLabels                    map[string]string `yaml:"nodeLabels"`
	RegisterWithTaints            []taint           `yaml:"registerWithTaints"`
	ProviderID                    string            `yaml:"providerID"`
	EnableControllerAttachDetach  bool              `yaml:"enableControllerAttachDetach"`
	VolumeLimits                  map[string]string `yaml:"volumeLimits"`
	VolumeLimitsFromCSINode       bool              `yaml:"volumeLimitsFromCSINode"`
	NodeIP                        string            `yaml:"nodeIP"`
	CloudProvider                 string            `yaml:"cloudProvider"`
	MaxPods                       int64             `yaml:"maxPods"`
	PodsPerCore                   int64             `yaml:"podsPerCore"`
	SystemReserved                map[string]string `yaml:"systemReserved"`
	KubeReserved                  map[string]string `yaml:"kubeReserved"`
	ReservedSystemCPUs            string            `yaml:"reservedSystemCPUs"`
	LocalStorageCapacityIsolation bool              `yaml:"localStorageCapacityIsolation"`
	ContainerRuntimeEndpoint      string            `yaml:"containerRuntimeEndpoint"`
	ImageServiceEndpoint          string            `yaml:"imageServiceEndpoint"`
	NodeStatusMaxImages           int32             `yaml:"nodeStatusMaxImages"`
	KubeletVersion                string            `yaml:"kubeletVersion"`
	Port                          int32             `yaml:"port"`
	ShutdownGracePeriod           time.Duration     `yaml:"shutdownGracePeriod"`
	LastWord                      string            `yaml:"lastWord"`

	Conditions         map[string]conditionRow `yaml:"conditions"`
	ConditionHeartbeat time.Duration           `yaml:"conditionHeartbeat"`
	ConditionsOnExit   string                  `yaml:"conditionsOnExit"`
	Shadow             bool                    `yaml:"shadow"`

	WebListenAddress       string `yaml:"webListenAddress"`
	WebConfigFile          string `yaml:"webConfigFile"`
	WebHealthListenAddress string `yaml:"webHealthListenAddress"`
	DropCapabilities       bool   `yaml:"dropCapabilities"`
	LogLevel               string `yaml:"logLevel"`
	LogFormat              string `yaml:"logFormat"`
}

// taint is a taint as the kubelet's configuration spells it.
type taint struct {
	Key    string `yaml:"key"`
	Value  string `yaml:"value"`
	Effect string `yaml:"effect"`
}

// conditionRow is one condition of our own.
type conditionRow struct {
	When     []string      `yaml:"when"`
	For      time.Duration `yaml:"for"`
	Hold     time.Duration `yaml:"hold"`
	Reason   string        `yaml:"reason"`
	OKReason string        `yaml:"okReason"`
}

// modes that mode may be.
const (
	modeObserve = "observe"
	modeAugment = "augment"
	modeOwn     = "own"
)

// defaults returns the configuration of default.yaml.
func defaults() config {
	var c config
	if _, problems := decodeStrictly(defaultConfig, &c); len(problems) > 0 {
		panic("default.yaml: " + problems[0].err.Error()) // a test parses it
	}
	return c
}

// setting is a field that a flag sets, whatever the file says.
type setting struct {
	flag, field, value string
	target             func(*config) *string
}

// loadConfig reads a configuration file over the defaults, which a kubelet's
// files may have changed, applies the flags' settings and checks the result. An
// empty path is the defaults. The error has one line for each problem, which
// names file, line and field.
func loadConfig(path string, kubelet kubeletFiles, settings ...setting) (config, *policy, error) {
	base, err := kubelet.load()
	if err != nil {
		return config{}, nil, err
	}
	if path == "" {
		return base.settle("configuration", nil, base.config, nil, settings)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return config{}, nil, fmt.Errorf("read configuration: %w", err)
	}
	return base.parse(path, data, settings)
}

// parse reads our own file's content over what the kubelet's files came to.
func (k *kubeletConfig) parse(path string, data []byte, settings []setting) (config, *policy, error) {
	c := k.config
	c.APIVersion, c.Kind = "", "" // a file must say itself what it is
	root, problems := decodeStrictly(data, &c)
	if root == nil { // nothing could be read, so there is nothing to check
		return config{}, nil, k.join(path, append(k.problems, problems...))
	}
	return k.settle(path, root, c, problems, settings)
}

// settle applies the settings to what was decoded, and checks it.
func (k *kubeletConfig) settle(path string, root *yaml.Node, c config, problems []problem, settings []setting) (config, *policy, error) {
	problems = append(k.problems, problems...)
	flags := map[string]string{}
	for _, s := range settings {
		*s.target(&c) = s.value
		flags[s.field] = s.flag
	}
	p, wrong := c.policy()
	undecoded := problems
	for _, w := range wrong {
		if w.flag = flags[w.field]; w.flag == "" {
			w.path, w.line = k.place(root, w.field, w.key)
		}
		if slices.ContainsFunc(undecoded, func(u problem) bool { return u.within(w) }) {
			continue // one mistake, one line
		}
		problems = append(problems, w)
	}
	if err := k.join(path, problems); err != nil {
		return config{}, nil, err
	}
	p.remarks = append(k.remarks, k.differences(&c, root)...)
	return c, p, nil
}

// problem is one thing that is wrong with a configuration.
type problem struct {
	field string // "" for the whole file
	key   string // of an entry of that map, or index in that list, or ""
	err   error
	path  string // of a kubelet's file; "" for our own
	line  int    // 0 if the file does not have the field
	flag  string // the flag that set the field, or ""
}

// name is how the field is spelled in messages.
func (p problem) name() string {
	if p.key == "" {
		return p.field
	}
	return p.field + "[" + p.key + "]"
}

// within says whether p is about the same field as other, or a part of it.
func (p problem) within(other problem) bool {
	return p.path == other.path && (p.field == other.name() || strings.HasPrefix(p.field, other.name()+"."))
}

// What is wrong may be a huge value, or all of a huge file.
const (
	mostRunes    = 600
	mostProblems = 50
)

// join makes one error of all problems, in the order of the files, with our own,
// at path, behind a kubelet's.
func (k *kubeletConfig) join(path string, problems []problem) error {
	order := map[string]int{"": len(k.documents)}
	for i, doc := range k.documents {
		order[doc.path] = i
	}
	slices.SortStableFunc(problems, func(a, b problem) int {
		return cmp.Or(cmp.Compare(order[a.path], order[b.path]), cmp.Compare(a.line, b.line))
	})
	var errs []error
	for i, p := range problems {
		if i == mostProblems {
			errs = append(errs, fmt.Errorf("%s: %d more problems", path, len(problems)-i))
			break
		}
		place := cmp.Or(p.path, path)
		switch {
		case p.flag != "":
			place = "--" + p.flag
		case p.line > 0:
			place = fmt.Sprintf("%s:%d", place, p.line)
		}
		text := p.err.Error()
		if name := p.name(); name != "" {
			text = name + ": " + text
		}
		errs = append(errs, errors.New(place+": "+oneLine(text, mostRunes)))
	}
	return errors.Join(errs...)
}

package config

import (
	_ "embed"
	"time"
)

// defaultYAML documents every field. It is where the defaults come from.
//
//go:embed default.yaml
var defaultYAML string

// Default returns the documented configuration file with every field at its default.
func Default() string { return defaultYAML }

const (
	apiVersion = "nodeprobe.dev/v1alpha1"
	kind       = "NodeProbeConfiguration"
)

// file is the configuration as it is written: texts, not yet parsed.
type file struct {
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
	FieldManager                  string            `yaml:"fieldManager"`
	NodeStatusUpdateFrequency     time.Duration     `yaml:"nodeStatusUpdateFrequency"`
	NodeStatusReportFrequency     time.Duration     `yaml:"nodeStatusReportFrequency"`
	NodeLeaseDurationSeconds      int32             `yaml:"nodeLeaseDurationSeconds"`
	RegisterNode                  bool              `yaml:"registerNode"`
	NodeLabels                    map[string]string `yaml:"nodeLabels"`
	NodeAnnotations               map[string]string `yaml:"nodeAnnotations"`
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
	ExitMessage                   string            `yaml:"exitMessage"`

	Conditions         map[string]condition `yaml:"conditions"`
	ConditionHeartbeat time.Duration        `yaml:"conditionHeartbeat"`
	ConditionsOnExit   string               `yaml:"conditionsOnExit"`
	Shadow             bool                 `yaml:"shadow"`

	LockedMemoryLimit string `yaml:"lockedMemoryLimit"`
	OOMScoreAdj       int32  `yaml:"oomScoreAdj"`
	DropCapabilities  bool   `yaml:"dropCapabilities"`

	WebListenAddress       string `yaml:"webListenAddress"`
	WebHealthListenAddress string `yaml:"webHealthListenAddress"`
	WebConfigFile          string `yaml:"webConfigFile"`
	LogLevel               string `yaml:"logLevel"`
	LogFormat              string `yaml:"logFormat"`
}

// taint is a taint as a KubeletConfiguration spells it.
type taint struct {
	Key    string `yaml:"key"`
	Value  string `yaml:"value"`
	Effect string `yaml:"effect"`
}

// condition is a row of conditions.
type condition struct {
	When     []string      `yaml:"when"`
	For      time.Duration `yaml:"for"`
	Hold     time.Duration `yaml:"hold"`
	Reason   string        `yaml:"reason"`
	OKReason string        `yaml:"okReason"`
}

// defaults returns a copy of the defaults that may be written to.
func defaults() file {
	var f file
	if _, problems := decodeStrictly([]byte(defaultYAML), &f); len(problems) > 0 {
		panic("default.yaml: " + problems[0].err.Error()) // a test parses it
	}
	return f
}

// goFields maps the fields of a nodeprobe.Config to those of a file, where these are
// not spelled alike.
var goFields = map[string]string{
	"DisableBPF":             "bpf",
	"TransitionPeriod":       "evictionPressureTransitionPeriod",
	"Thresholds":             "evictionHard",
	"EvictionReserved":       "evictionHard",
	"RemoveConditions":       "conditionsOnExit",
	"StatusUpdateFrequency":  "nodeStatusUpdateFrequency",
	"StatusReportFrequency":  "nodeStatusReportFrequency",
	"LeaseDuration":          "nodeLeaseDurationSeconds",
	"Register":               "registerNode",
	"Labels":                 "nodeLabels",
	"Annotations":            "nodeAnnotations",
	"Taints":                 "registerWithTaints",
	"ControllerAttachDetach": "enableControllerAttachDetach",
	"NodeIPs":                "nodeIP",
	"ExternalCloudProvider":  "cloudProvider",
	"ReservedCPUs":           "reservedSystemCPUs",
	"RuntimeEndpoint":        "containerRuntimeEndpoint",
	"ImageEndpoint":          "imageServiceEndpoint",
	"MaxImages":              "nodeStatusMaxImages",
}

package nodeprobe

import (
	"errors"
	"math"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"
	"k8s.io/utils/cpuset"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// valid is a configuration with every field in use.
func valid() Config {
	cfg := DefaultConfig()
	cfg.Mode, cfg.NodeName, cfg.API = Own, "edge-1", &rest.Config{Host: "https://127.0.0.1:6443"}
	cfg.RuntimeEndpoint, cfg.ImageEndpoint = "unix:///run/containerd/containerd.sock", "/run/images.sock"
	cfg.Labels = map[string]string{"example.com/site": "a"}
	cfg.Annotations = map[string]string{"example.com/note": "any text"}
	cfg.Taints = []v1.Taint{{Key: "example.com/edge", Value: "yes", Effect: v1.TaintEffectNoSchedule}}
	cfg.VolumeLimits = map[v1.ResourceName]int64{"attachable-volumes-csi-example": 4}
	cfg.SystemReserved = v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")}
	cfg.KubeReserved = v1.ResourceList{"pid": resource.MustParse("100")}
	cfg.NodeIPs = []net.IP{net.IPv4(192, 0, 2, 1)}
	cfg.ReservedCPUs = cpuset.New(0)
	cfg.ShutdownGracePeriod, cfg.ExitMessage = 5*time.Second, "bye"
	return cfg
}

func TestDefaultsAreValid(t *testing.T) {
	cfg := DefaultConfig()
	cfg.NodeName = "edge-1"
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	cfg = valid()
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}

// A build may have any name, and it is what the Node shows by default.
func TestVersionOfABuild(t *testing.T) {
	cfg := valid()
	cfg.Version, cfg.KubeletVersion = "e2e+nodeprobe", ""
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil || cfg.KubeletVersion != cfg.Version {
		t.Errorf("shows %q: %v", cfg.KubeletVersion, err)
	}
}

// Each field wrong in turn: the error names it, and nothing else.
func TestValidate(t *testing.T) {
	taint := v1.Taint{Key: "k", Effect: v1.TaintEffectNoExecute}
	rule := DefaultConfig().Conditions[0]
	with := func(change func(*pressure.Rule)) []pressure.Rule {
		changed := rule
		change(&changed)
		return []pressure.Rule{changed}
	}
	for _, test := range []struct {
		field string
		set   func(*Config)
		want  string
	}{
		{"Mode", func(c *Config) { c.Mode = "Own" }, `Mode: "Own" is not "observe" or "augment" or "own"`},
		{"Mode", func(c *Config) { c.Mode = "" }, `Mode: "" is not`},
		{"NodeName", func(c *Config) { c.NodeName = "" }, `NodeName: "" is not the name of a node`},
		{"NodeName", func(c *Config) { c.NodeName = "My_Node" }, `use lower-case letters, digits, '-' and '.'`},
		{"Procfs", func(c *Config) { c.Procfs = "proc" }, `Procfs: "proc" is not an absolute path`},
		{"Sysfs", func(c *Config) { c.Sysfs = "" }, `Sysfs: "" is not an absolute path`},
		{"Rootfs", func(c *Config) { c.Rootfs = "./" }, `Rootfs: "./"`},
		{"RootDirectory", func(c *Config) { c.RootDirectory = "x" }, `RootDirectory: "x"`},
		{"ImageDirectories", func(c *Config) { c.ImageDirectories = []string{"/a", "b"} }, `ImageDirectories[1]: "b"`},
		{"SampleInterval", func(c *Config) { c.SampleInterval = 0 }, "SampleInterval: 0s is less than 100ms"},
		{"SampleInterval", func(c *Config) { c.SampleInterval = 2 * time.Hour }, "2h0m0s is more than 1h0m0s"},
		{"StatfsTimeout", func(c *Config) { c.StatfsTimeout = -1 }, "StatfsTimeout: -1ns is less than 10ms"},
		{"TransitionPeriod", func(c *Config) { c.TransitionPeriod = -1 }, "TransitionPeriod: -1ns"},
		{"ConditionHeartbeat", func(c *Config) { c.ConditionHeartbeat = time.Second }, "ConditionHeartbeat: 1s is less than 10s"},
		{"Conditions", func(c *Config) { c.Conditions = make([]pressure.Rule, 65) }, "Conditions: 65 conditions, of which at most 64"},
		{"Conditions", func(c *Config) { c.Conditions = with(func(r *pressure.Rule) { r.Type = "Ready" }) }, "Conditions[Ready]: a kubelet writes this condition"},
		{"Conditions", func(c *Config) { c.Conditions = with(func(r *pressure.Rule) { r.Type = "not a name" }) }, "is not a qualified name such as"},
		{"Conditions", func(c *Config) { c.Conditions = with(func(r *pressure.Rule) { r.When = nil }) }, "would never be True"},
		{"Conditions", func(c *Config) {
			c.Conditions = with(func(r *pressure.Rule) { r.When = append(r.When[:1:1], pressure.Clause{}) })
		}, "would always be True"},
		{"Conditions", func(c *Config) { c.Conditions = with(func(r *pressure.Rule) { r.For = -1 }) }, "for: -1ns"},
		{"Conditions", func(c *Config) { c.Conditions = with(func(r *pressure.Rule) { r.Hold = -1 }) }, "hold: -1ns"},
		{"Conditions", func(c *Config) { c.Conditions = with(func(r *pressure.Rule) { r.Reason = "two words" }) }, `reason: "two words" is not one word`},
		{"Conditions", func(c *Config) { c.Conditions = with(func(r *pressure.Rule) { r.OKReason = strings.Repeat("x", 129) }) }, "okReason: 129 characters"},
		{"Conditions", func(c *Config) { c.Conditions = []pressure.Rule{rule, rule} }, "a second condition of this type"},
		{"API", func(c *Config) { c.API = nil }, "API: mode own needs an API server"},
		{"API", func(c *Config) { c.API = &rest.Config{} }, "API: Host is empty"},
		{"FieldManager", func(c *Config) { c.FieldManager = "my-kubelet" }, "would be taken for a kubelet"},
		{"FieldManager", func(c *Config) { c.FieldManager = "a/b" }, "is not a field manager"},
		{"FieldManager", func(c *Config) { c.FieldManager = "edge\nagent" }, `"edge\nagent" is not a field manager`},
		{"FieldManager", func(c *Config) { c.FieldManager = "edge\xffagent" }, "is not a field manager"},
		{"Version", func(c *Config) { c.Version = "v1.2.3\n" }, `Version: "v1.2.3\n" cannot be part of a user agent`},
		{"Thresholds", func(c *Config) { c.Thresholds = []pressure.Threshold{{Signal: 200}} }, "Thresholds[0]: there is no signal 200"},
		{"Thresholds", func(c *Config) { c.Thresholds = []pressure.Threshold{{Grace: -1}} }, "Thresholds[0]: memory.available: grace period -1ns"},
		{"Thresholds", func(c *Config) { c.Thresholds = []pressure.Threshold{{Value: pressure.Value{Percentage: 10}}} }, "value must be a quantity, or a percentage from 0 to 1"},
		{"Thresholds", func(c *Config) {
			c.Thresholds = []pressure.Threshold{{Value: pressure.Value{Quantity: 1, Percentage: .1}}}
		}, "value must be"},
		{"Thresholds", func(c *Config) {
			c.Thresholds = []pressure.Threshold{{MinReclaim: pressure.Value{Percentage: float32(math.NaN())}}}
		}, "minimum reclaim must be"},
		{"Thresholds", func(c *Config) { c.Thresholds = append(c.Thresholds, c.Thresholds[0]) }, "a second threshold memory.available<100Mi"},
		{"EvictionReserved", func(c *Config) { c.EvictionReserved = []pressure.Threshold{{Signal: 200}} }, "EvictionReserved[0]: there is no signal 200"},
		{"StatusUpdateFrequency", func(c *Config) { c.StatusUpdateFrequency = 0 }, "0s is less than 1s"},
		{"StatusReportFrequency", func(c *Config) { c.StatusReportFrequency = 0 }, "0s is less than 1s"},
		{"LeaseDuration", func(c *Config) { c.LeaseDuration = 1500 * time.Millisecond }, "1.5s is not a whole number of seconds"},
		{"LeaseDuration", func(c *Config) { c.LeaseDuration = 0 }, "0s is less than 1s"},
		{"Labels", func(c *Config) { c.Labels["a b"] = "" }, `Labels[a b]: "a b" is not a qualified name such as`},
		{"Labels", func(c *Config) { c.Labels["k"] = "ä" }, `Labels[k]: value "ä": use at most 63 letters`},
		{"Annotations", func(c *Config) { c.Annotations["/"] = "" }, "Annotations[/]:"},
		{"Taints", func(c *Config) { c.Taints = []v1.Taint{{Key: "k", Effect: "Never"}} }, `Taints[0]: effect: "Never" is not`},
		{"Taints", func(c *Config) { c.Taints = []v1.Taint{taint, taint} }, "Taints[1]: a second taint"},
		{"VolumeLimits", func(c *Config) { c.VolumeLimits["x"] = -1 }, "VolumeLimits[x]: -1 is less than 0"},
		{"NodeIPs", func(c *Config) { c.NodeIPs = []net.IP{net.IPv6loopback, net.IPv4bcast, net.IPv4allsys} }, "NodeIPs: 3 addresses"},
		{"NodeIPs", func(c *Config) { c.NodeIPs = []net.IP{net.IPv4bcast, net.IPv4allsys} }, "NodeIPs: 2 addresses; give one, or one of each family"},
		{"NodeIPs", func(c *Config) { c.NodeIPs = []net.IP{nil} }, `NodeIPs: "<nil>" is not an IP address`},
		{"NodeIPs", func(c *Config) { c.NodeIPs = []net.IP{net.IPv4allsys, net.IPv6zero} }, "NodeIPs: :: stands for any address"},
		{"MaxPods", func(c *Config) { c.MaxPods = -1 }, "MaxPods: -1"},
		{"PodsPerCore", func(c *Config) { c.PodsPerCore = -1 }, "PodsPerCore: -1"},
		{"SystemReserved", func(c *Config) { c.SystemReserved["gpu"] = resource.MustParse("1") }, `SystemReserved[gpu]: "gpu" is not "cpu"`},
		{"KubeReserved", func(c *Config) { c.KubeReserved["cpu"] = resource.MustParse("-1") }, "KubeReserved[cpu]: -1 is negative"},
		{"RuntimeEndpoint", func(c *Config) { c.RuntimeEndpoint = "tcp://x:1" }, "RuntimeEndpoint: "},
		{"ImageEndpoint", func(c *Config) { c.RuntimeEndpoint = "" }, "ImageEndpoint: is set, but the endpoint of the container runtime is not"},
		{"MaxImages", func(c *Config) { c.MaxImages = -2 }, "MaxImages: -2 is less than -1"},
		{"KubeletVersion", func(c *Config) { c.KubeletVersion = "new" }, `KubeletVersion: "new" is not a semantic version`},
		{"Port", func(c *Config) { c.Port = 0 }, "Port: 0 is less than 1"},
		{"ShutdownGracePeriod", func(c *Config) { c.ShutdownGracePeriod = 2 * time.Hour }, "ShutdownGracePeriod: 2h0m0s is more than 1h0m0s"},
		{"Setters", func(c *Config) { c.Setters = []Setter{nil} }, "Setters[0]: is nil"},
	} {
		cfg := valid()
		test.set(&cfg)
		err := cfg.Validate()
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", test.field, err, test.want)
			continue
		}
		for _, err := range err.(interface{ Unwrap() []error }).Unwrap() {
			field, ok := errors.AsType[*FieldError](err)
			if !ok || field.Field != test.field {
				t.Errorf("%s: a wrong field also makes %v", test.field, err)
			}
			if _, ok := reflect.TypeFor[Config]().FieldByName(field.Field); !ok {
				t.Errorf("%v names no field of Config", err)
			}
		}
		if agent, err := New(cfg); err == nil || agent != nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: New took it: %v", test.field, err)
		}
	}
}

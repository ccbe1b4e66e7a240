package nodeprobe

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"github.com/nodeprobe/nodeprobe/internal/apiclient"
	"github.com/nodeprobe/nodeprobe/internal/judge"
	"github.com/nodeprobe/nodeprobe/internal/staged"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/probe/notify"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/probe/volume"
	"github.com/nodeprobe/nodeprobe/status/node"
)

// nodeConfig is package node's part of a configuration.
func nodeConfig(cfg *Config) node.Config {
	return node.Config{
		NodeName: cfg.NodeName, FieldManager: cfg.FieldManager,
		Registration: node.Registration{
			Labels: cfg.Labels, Annotations: cfg.Annotations, Taints: cfg.Taints, ProviderID: cfg.ProviderID,
			ControllerAttachDetach: cfg.ControllerAttachDetach,
		},
		Addresses: node.Addresses{
			NodeName: cfg.NodeName, Hostname: cfg.NodeName, NodeIPs: cfg.NodeIPs,
			ExternalCloudProvider: cfg.ExternalCloudProvider,
		},
		Resources:      resources(cfg),
		KubeletVersion: cfg.KubeletVersion, Port: cfg.Port,
		NetworkErrors: cfg.NetworkErrors, StorageErrors: cfg.StorageErrors, SoftRequirements: cfg.SoftRequirements,
		Setters: cfg.Setters, Timeout: callTimeout(cfg),
	}
}

// policy is package judge's part of a configuration.
func policy(cfg *Config) judge.Policy {
	return judge.Policy{
		Interval: cfg.SampleInterval, Thresholds: cfg.Thresholds, TransitionPeriod: cfg.TransitionPeriod, Rules: cfg.Conditions,
	}
}

// stallTriggers are those of every node, and what conditions need beside them.
func stallTriggers(conditions []pressure.Rule) []notify.StallTrigger {
	triggers := notify.DefaultStallTriggers()
	for _, limit := range pressure.StallLimits(conditions) {
		triggers = notify.WithRule(triggers, limit.Resource, limit.Full, limit.Share)
	}
	return triggers
}

// newClients makes the clients of a configuration's node.
func newClients(cfg *Config) (*apiclient.Clients, error) { return apiclient.New(clientConfig(cfg)) }

// clientConfig is package apiclient's part of a configuration.
func clientConfig(cfg *Config) apiclient.Config {
	return apiclient.Config{
		API: cfg.API, Origin: cmp.Or(cfg.APIOrigin, "Config.API"), NodeName: cfg.NodeName,
		UserAgent: cfg.FieldManager + "/" + cfg.Version, OnReconnect: cfg.OnReconnect,
	}
}

// resources are the reservations of a configuration.
func resources(cfg *Config) node.Resources {
	system, kube := cfg.SystemReserved.DeepCopy(), cfg.KubeReserved.DeepCopy()
	if n := cfg.ReservedCPUs.Size(); n > 0 {
		if system == nil {
			system = v1.ResourceList{}
		}
		system[v1.ResourceCPU] = *resource.NewQuantity(int64(n), resource.DecimalSI)
		delete(kube, v1.ResourceCPU)
	}
	return node.Resources{
		MaxPods: cfg.MaxPods, PodsPerCore: cfg.PodsPerCore,
		SystemReserved: system, KubeReserved: kube, Thresholds: cfg.EvictionReserved,
		LocalStorageCapacityIsolation: cfg.LocalStorageCapacityIsolation,
	}
}

// checkReserved returns an error if a machine has less than is reserved.
func checkReserved(cfg *Config, s *probe.Snapshot) error {
	if err := checkCPUs(cfg.ReservedCPUs, cfg.Sysfs); err != nil {
		return err
	}
	r := resources(cfg)
	return r.Check(&s.Capacity)
}

// checkCPUs returns an error, in the kubelet's words, if a reserved CPU is not online
// (/sys/devices/system/cpu/online).
func checkCPUs(reserved cpuset.CPUSet, sysfs string) error {
	if reserved.IsEmpty() {
		return nil
	}
	path := filepath.Join(sysfs, "devices/system/cpu/online")
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("check ReservedCPUs: %w", err)
	}
	online, err := cpuset.Parse(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("check ReservedCPUs: read %s: %w", path, err)
	}
	if !reserved.IsSubsetOf(online) {
		return fmt.Errorf("reserved-cpus: %s is not a subset of online-cpus: %s", reserved, online)
	}
	return nil
}

// newRuntime returns what asks the container runtime, through the node's root; without
// an endpoint, it reports a node without a runtime.
func newRuntime(cfg *Config, alive func(time.Duration), reg *staged.Registry) (*cri.Sampler, error) {
	onNode := func(endpoint string) string {
		path, err := cri.SocketPath(endpoint)
		if err != nil {
			return endpoint // none: Validate has refused all others
		}
		return "unix://" + filepath.Join(cfg.Rootfs, path)
	}
	sampler, err := cri.New(cri.Config{
		Endpoint: onNode(cfg.RuntimeEndpoint), ImageEndpoint: onNode(cfg.ImageEndpoint),
		Alive: alive, Logger: cfg.Logger, Registerer: reg,
	})
	if err != nil {
		return nil, fmt.Errorf("set up container runtime: %w", err)
	}
	return sampler, nil
}

// newVolumes returns what finds the volumes in use.
func newVolumes(cfg *Config, alive func(time.Duration), reg *staged.Registry) (*volume.Sampler, error) {
	sampler, err := volume.New(volume.Config{
		Procfs: cfg.Procfs, Rootfs: cfg.Rootfs, RootDirectory: cfg.RootDirectory,
		Timeout: cfg.StatfsTimeout, Alive: alive, Logger: cfg.Logger, Registerer: reg,
	})
	if err != nil {
		return nil, fmt.Errorf("set up volumes: %w", err)
	}
	return sampler, nil
}

// podCIDRs are the addresses of the Node's pods, as a runtime takes them.
func podCIDRs(n *v1.Node) string {
	if len(n.Spec.PodCIDRs) == 0 {
		return n.Spec.PodCIDR
	}
	return strings.Join(n.Spec.PodCIDRs, ",")
}

// imageDirectory is where the runtime keeps its images, a directory of the node; "" if
// it has not reported one. The kubelet takes the first as well.
func imageDirectory(s *cri.Snapshot) string {
	if len(s.ImageFilesystems) == 0 || !filepath.IsAbs(s.ImageFilesystems[0].Mountpoint) {
		return ""
	}
	return s.ImageFilesystems[0].Mountpoint
}

package nodeprobe

import (
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/cpuset"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
	"github.com/nodeprobe/nodeprobe/status/node"
)

// Mode is what an Agent may write to the API server.
type Mode string

// Modes. There is no default that writes: which one is right depends on whether a
// kubelet runs on the node, and is never guessed.
const (
	// Observe writes nothing. No cluster is needed.
	Observe Mode = "observe"
	// Augment writes conditions of its own beside a kubelet's, and Events.
	Augment Mode = "augment"
	// Own writes everything that a kubelet's node status manager writes: the Node,
	// its status and its Lease. It does so only while no kubelet does.
	Own Mode = "own"
)

// DefaultFieldManager is the name by which the API server knows an Agent's writes
// where Config.FieldManager is empty.
const DefaultFieldManager = "nodeprobe"

// Setter changes the part of a Node that it knows about; see [node.Setter].
type Setter = node.Setter

// Config is all that an [Agent] is made from. Start from [DefaultConfig]: most zero
// values mean zero, not a default. Fields without a mode in their comment are for
// all of them.
type Config struct {
	Mode Mode
	// NodeName is the name of the Node, a DNS subdomain. Required.
	NodeName string

	// Procfs, Sysfs and Rootfs are where the node's /proc, /sys and / are mounted.
	Procfs, Sysfs, Rootfs string
	// SampleInterval is the longest time between two samples, from 100 ms to 1 h.
	// Limits that the kernel cannot watch are sampled the faster the nearer they are.
	SampleInterval time.Duration
	// StatfsTimeout is how long a filesystem, or a file, may take to answer: from 10 ms
	// to 1 min. One that takes longer has failed until it answers in time.
	StatfsTimeout time.Duration
	// DisableBPF leaves all to procfs and sysfs.
	DisableBPF bool
	// RootDirectory is a directory on nodefs, absolute; ImageDirectories are
	// candidates for imagefs, of which the first that exists counts. If none does,
	// imagefs is nodefs.
	RootDirectory    string
	ImageDirectories []string

	// Thresholds decide MemoryPressure, DiskPressure and PIDPressure; see
	// [pressure.Parse]. Without any, these stay False.
	Thresholds []pressure.Threshold
	// TransitionPeriod is how long such a condition stays True after its last
	// threshold was left.
	TransitionPeriod time.Duration
	// Conditions are conditions of your own, at most [status.MaxConditions]. Modes
	// Augment and Own post them; Own without those of the defaults that repeat what it
	// posts under the kubelet's names, such as nodeprobe.dev/MemoryPressure.
	Conditions []pressure.Rule
	// ConditionHeartbeat is how often unchanged conditions are posted in mode
	// Augment: 10 s or more, or 0 for never.
	ConditionHeartbeat time.Duration
	// RemoveConditions removes Conditions from the Node when Run ends. Mode Augment.
	RemoveConditions bool
	// Shadow compares a kubelet's pressure conditions with our verdicts, in metrics.
	// It reads the Node, so that API is needed. Mode Augment does it anyway.
	Shadow bool

	// API reaches the API server. Modes Augment and Own, or with Shadow; Observe
	// does without. The Agent makes connections of its own from it for the Node, for
	// Events and for the Lease, and reads a token file again when it changes.
	API *rest.Config
	// APIOrigin names in errors where API's credentials come from, such as
	// "kubeconfig /etc/nodeprobe/kubeconfig".
	APIOrigin string
	// FieldManager is the name by which the API server knows our writes, and by which
	// the Agent knows its own. Two agents that write one Node need two names, and an
	// upgrade must not change it. DefaultFieldManager if empty. It may not contain
	// "kubelet": the guard would take it for one.
	FieldManager string
	// Version is that of your program, for the user agent. v0.0.0 if empty.
	Version string

	// StatusUpdateFrequency is the time between two passes of the setters that nothing
	// asked for; StatusReportFrequency that after which an unchanged status is posted.
	// Both 1 s or more. Mode Own.
	StatusUpdateFrequency, StatusReportFrequency time.Duration
	// LeaseDuration is in whole seconds; the Lease is renewed four times in it. Mode Own.
	LeaseDuration time.Duration

	// Register creates the Node if there is none. All that follows is for mode Own.
	Register bool
	// Labels, Annotations, Taints and ProviderID are what it is created with.
	Labels, Annotations map[string]string
	Taints              []v1.Taint
	ProviderID          string
	// ControllerAttachDetach leaves attaching volumes to the controller.
	ControllerAttachDetach bool
	// VolumeLimits is how many volumes can be attached, by resource. With
	// VolumeLimitsFromCSINode, the limits that the node's CSINode has are added.
	VolumeLimits            map[v1.ResourceName]int64
	VolumeLimitsFromCSINode bool
	// NodeIPs is none, one, or one of each family.
	NodeIPs []net.IP
	// ExternalCloudProvider leaves the addresses to a cloud controller manager.
	ExternalCloudProvider bool
	// MaxPods and PodsPerCore bound the capacity for pods; PodsPerCore 0 is no bound.
	MaxPods, PodsPerCore int64
	// SystemReserved, KubeReserved (cpu, memory, ephemeral-storage, pid) and
	// EvictionReserved, the hard thresholds, are kept from what is allocatable.
	SystemReserved, KubeReserved v1.ResourceList
	EvictionReserved             []pressure.Threshold
	// ReservedCPUs must be online; their number replaces the cpu of SystemReserved
	// and KubeReserved.
	ReservedCPUs cpuset.CPUSet
	// LocalStorageCapacityIsolation shows ephemeral-storage.
	LocalStorageCapacityIsolation bool
	// RuntimeEndpoint is the socket of the container runtime, such as
	// unix:///run/containerd/containerd.sock; "" is a node without one. The Node is
	// ready only while the runtime is. ImageEndpoint is RuntimeEndpoint if empty.
	RuntimeEndpoint, ImageEndpoint string
	// MaxImages is how many of its images the Node shows; -1 is all.
	MaxImages int
	// KubeletVersion and Port are what the Node shows as the kubelet's. The version must
	// be a semantic one; it is Version if empty.
	KubeletVersion string
	Port           int32
	// ShutdownGracePeriod is how long a shutdown of the machine is delayed, through
	// logind's inhibitor, until the API server knows; 0 does not listen to logind.
	ShutdownGracePeriod time.Duration
	// ExitMessage is what Ready=False says after Run has ended; "" leaves Ready as it is.
	ExitMessage string

	// Setters run after the built-in ones, in order; call [Agent.Update] when what
	// they set has changed. One that panics, or does not return in time, costs what it
	// would have set, and is named in the log.
	Setters []Setter
	// NetworkErrors, StorageErrors and SoftRequirements give reasons of your own for
	// the node not to be ready, as the kubelet's parts do: the first two make Ready
	// False, the third adds a warning to its message. They must return at once, and
	// may be nil.
	NetworkErrors, StorageErrors, SoftRequirements func() error

	// OnSample is called with each sample, after it was judged, by the goroutine that
	// samples: it must neither block nor keep the pointer. May be nil.
	OnSample func(*probe.Snapshot)
	// OnReconnect is called after connections to the API server were dropped. It must
	// not block. May be nil.
	OnReconnect func()

	// Logger is silent and Registerer is not used if nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// DefaultConfig returns the defaults: those of nodeprobe's configuration file, which in
// most are a kubelet's. Mode is Observe; NodeName is for the caller to set.
func DefaultConfig() Config {
	eviction := pressure.Config{Hard: map[string]string{
		"memory.available":   "100Mi",
		"nodefs.available":   "10%",
		"nodefs.inodesFree":  "5%",
		"imagefs.available":  "15%",
		"imagefs.inodesFree": "5%",
		"pid.available":      "5%",
	}}
	reserved, _, hardErr := pressure.Parse(eviction)
	eviction.EnforceNodeAllocatable = []string{"pods"}
	thresholds, _, err := pressure.Parse(eviction)
	if err = errors.Join(hardErr, err); err != nil {
		panic(err) // of constants, which a test parses
	}
	return Config{
		Mode:   Observe,
		Procfs: "/proc", Sysfs: "/sys", Rootfs: "/",
		SampleInterval:   10 * time.Second,
		StatfsTimeout:    2 * time.Second,
		RootDirectory:    "/var/lib/kubelet",
		ImageDirectories: []string{"/var/lib/containerd", "/var/lib/containers/storage"},

		Thresholds:         thresholds,
		TransitionPeriod:   5 * time.Minute,
		Conditions:         defaultConditions(),
		ConditionHeartbeat: 5 * time.Minute,
		RemoveConditions:   true,

		FieldManager:          DefaultFieldManager,
		Version:               "v0.0.0",
		StatusUpdateFrequency: 10 * time.Second,
		StatusReportFrequency: 5 * time.Minute,
		LeaseDuration:         40 * time.Second,

		Register:                      true,
		ControllerAttachDetach:        true,
		MaxPods:                       110,
		EvictionReserved:              reserved,
		LocalStorageCapacityIsolation: true,
		MaxImages:                     50,
		Port:                          10250,
	}
}

// defaultConditions are the rows of conditions that there are by default.
func defaultConditions() []pressure.Rule {
	rules := []pressure.Rule{
		{Type: "DiskPressure", Reason: "DiskIsShort", OKReason: "DiskIsSufficient"},
		{Type: "IOContention", Reason: "TasksWaitForDisks", OKReason: "TasksDoNotWaitForDisks"},
		{Type: "MemoryContention", Reason: "TasksWaitForMemory", OKReason: "TasksDoNotWaitForMemory"},
		{Type: "MemoryPressure", Reason: "MemoryIsShort", OKReason: "MemoryIsSufficient"},
		{Type: "PIDPressure", Reason: "PIDsAreShort", OKReason: "PIDsAreSufficient"},
		{Type: "ReadonlyFilesystem", Reason: "FilesystemIsReadOnly", OKReason: "FilesystemIsWritable"},
	}
	when := [][]string{
		{"DiskPressure"},
		{"io.full.avg60 > 50% and io.full.avg10 > 50%"},
		{"memory.full.avg60 > 20% and memory.full.avg10 > 20%"},
		{"MemoryPressure"},
		{"PIDPressure"},
		{"nodefs.readonly", "imagefs.readonly"},
	}
	for i := range rules {
		rules[i].Type = status.Prefix + rules[i].Type
		for _, text := range when[i] {
			clause, err := pressure.ParseClause(text)
			if err != nil {
				panic(err) // of a constant, which a test parses
			}
			rules[i].When = append(rules[i].When, clause)
		}
	}
	return rules
}

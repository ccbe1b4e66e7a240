package status

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

func TestInitialNode(t *testing.T) {
	cfg := newScene(t).config()
	cfg.Registration = Registration{
		Labels:     map[string]string{"team": "a", v1.LabelHostname: "other", v1.LabelInstanceTypeStable: "m1"},
		Taints:     []v1.Taint{{Key: "k", Value: "v", Effect: v1.TaintEffectNoExecute}},
		ProviderID: "cloud:///i-1", ControllerAttachDetach: true,
	}
	cfg.Addresses.ExternalCloudProvider = true
	facts := machineFacts(epoch)
	got, err := InitialNode(t.Context(), &cfg, &facts, epoch)
	if err != nil {
		t.Fatal(err)
	}
	capacity := map[string]string{
		"cpu": "4", "memory": "16384256Ki", "pods": "110", "ephemeral-storage": "129900528Ki", "hugepages-2Mi": "0", "hugepages-1Gi": "0",
	}
	cond := func(kind v1.NodeConditionType, status v1.ConditionStatus, reason, message string) v1.NodeCondition {
		return v1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: message, LastHeartbeatTime: at(0), LastTransitionTime: at(0)}
	}
	want := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: nodeName,
			Labels: map[string]string{
				"kubernetes.io/hostname": "other", "team": "a", "node.kubernetes.io/instance-type": "m1",
				"kubernetes.io/os": runtime.GOOS, "kubernetes.io/arch": runtime.GOARCH,
				"beta.kubernetes.io/os": runtime.GOOS, "beta.kubernetes.io/arch": runtime.GOARCH,
			},
			Annotations: map[string]string{
				"volumes.kubernetes.io/controller-managed-attach-detach": "true",
				"alpha.kubernetes.io/provided-node-ip":                   "10.0.0.1",
			},
		},
		Spec: v1.NodeSpec{
			ProviderID: "cloud:///i-1",
			Taints: []v1.Taint{
				{Key: "k", Value: "v", Effect: v1.TaintEffectNoExecute},
				{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: v1.TaintEffectNoSchedule},
			},
		},
		Status: v1.NodeStatus{
			Capacity: resources(capacity), Allocatable: resources(capacity),
			Conditions: []v1.NodeCondition{
				cond("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
				cond("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
				cond("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
				cond("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
			},
			Addresses:       addresses("10.0.0.1", nodeName),
			DaemonEndpoints: v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: 10250}},
			NodeInfo: v1.NodeSystemInfo{
				MachineID: "machine", SystemUUID: "uuid", BootID: "boot", KernelVersion: "6.12.0",
				OSImage: "Debian GNU/Linux 13 (trixie)", KubeletVersion: "v1.36.3",
				OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
			},
		},
	}
	diff(t, "node", want, got, sameTimes())
	if len(cfg.Registration.Labels) != 3 || len(cfg.Registration.Taints) != 1 {
		t.Error("the configuration was changed")
	}
}

// What stands in the way of registration decides what is called, and what the
// outcome says. V26 and V27 are among them.
func TestRegister(t *testing.T) {
	other := func(n *v1.Node) { // as somebody else's tool would make it
		n.Labels = map[string]string{"foreign": "kept"}
		n.Status.Conditions = []v1.NodeCondition{{Type: "MemoryPressure", Status: v1.ConditionTrue, Reason: "KubeletHasInsufficientMemory"}}
	}
	for _, test := range []struct {
		name   string
		exists func(*v1.Node)
		change func(*Config)
		fail   map[string]error
		want   string // calls within the first 150 ms
		err    string
	}{
		{name: "created", want: "POST PATCH"},
		{name: "exists", exists: other, want: "POST GET ADOPT PATCH PATCH"},
		{name: "exists as we would make it", exists: adopted, want: "POST GET ADOPT PATCH"},
		{name: "V26: may not create, but it exists", exists: adopted, fail: map[string]error{"POST": errForbidden}, want: "POST GET ADOPT PATCH"},
		{
			name: "may not create, and it does not exist", fail: map[string]error{"POST": errForbidden}, want: "POST GET",
			err: `create node node-1: nodes "node-1" is forbidden: no; get node node-1: nodes "node-1" not found`,
		},
		{
			name: "exists, and may neither be read nor patched", exists: other,
			fail: map[string]error{"GET": errForbidden, "PATCH": errForbidden}, want: "POST GET PATCH",
			err: `create node node-1: nodes "node-1" already exists; get node node-1: nodes "node-1" is forbidden: no`,
		},
		{
			name: "exists, and may not be read: a patch is answered with it", exists: other,
			fail: map[string]error{"GET": errForbidden}, want: "POST GET PATCH ADOPT PATCH PATCH",
		},
		{
			name: "exists, and may not be patched", exists: other, fail: map[string]error{"PATCH": errForbidden}, want: "POST GET ADOPT PATCH",
			err: `patch node node-1: nodes "node-1" is forbidden: no`,
		},
		{name: "server error", fail: map[string]error{"POST": errServer}, want: "POST", err: "create node node-1: " + errServer.Error()},
		{name: "too many requests", fail: map[string]error{"POST": errTooMany}, want: "POST", err: "create node node-1: " + errTooMany.Error()},
		{name: "conflict, which is not that it exists", exists: adopted, fail: map[string]error{"POST": errConflict}, want: "POST", err: "create node node-1: " + errConflict.Error()},
		{name: "down", fail: map[string]error{"POST": errDown}, want: "POST", err: "create node node-1: dial tcp: connection refused"},
		{name: "not to register, and it does not exist", change: func(c *Config) { c.Register = false }, want: "GET", err: `get node node-1: nodes "node-1" not found; who runs the node has to register it, or this is not its name (nodeName, NODE_NAME)`},
		{name: "not to register, and it exists", change: func(c *Config) { c.Register = false }, exists: other, want: "GET ADOPT PATCH"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				if test.exists != nil {
					s.api.put(test.exists)
				}
				s.api.edit(func() { s.api.fail = func(verb string) error { return test.fail[verb] } })
				cfg := s.config()
				cfg.Registration.Labels = map[string]string{"foo": "bar", v1.LabelInstanceTypeStable: "m1"}
				if test.change != nil {
					test.change(&cfg)
				}
				s.play(cfg, func() {
					s.sleep(150 * time.Millisecond)
					s.api.took(t, "calls", test.want)
					diff(t, "ready", test.err, errorText(s.Ready()))
					diff(t, "errors", min(len(test.err), 1), len(s.logs.with("ERROR")))
					if test.err == "" {
						checkRegistered(t, s.api.current(), test.exists != nil, cfg.Register)
						return
					}
					// What stood in the way goes away.
					s.api.edit(func() { s.api.fail = nil })
					if !cfg.Register {
						s.api.put(other)
					}
					s.sleep(time.Second)
					diff(t, "ready in the end", nil, s.Ready())
				})
			})
		})
	}
}

// adopted is a Node that registration finds nothing to mend on.
func adopted(n *v1.Node) {
	n.Labels = map[string]string{
		"kubernetes.io/hostname": nodeName, "kubernetes.io/os": runtime.GOOS, "kubernetes.io/arch": runtime.GOARCH,
		"beta.kubernetes.io/os": runtime.GOOS, "beta.kubernetes.io/arch": runtime.GOARCH, "node.kubernetes.io/instance-type": "m1",
	}
	n.Status.Capacity = resources(map[string]string{"hugepages-2Mi": "0", "hugepages-1Gi": "0"})
	n.Status.Allocatable = n.Status.Capacity.DeepCopy()
}

func checkRegistered(t *testing.T, n *v1.Node, existed, register bool) {
	t.Helper()
	custom, instance := "bar", "m1"
	if existed {
		custom = "" // V27: not one of those that are reconciled
	}
	if !register {
		instance = ""
	}
	diff(t, "custom label", custom, n.Labels["foo"])
	diff(t, "default label", instance, n.Labels[v1.LabelInstanceTypeStable])
	if condition(n, v1.NodeReady) == nil || n.Labels[v1.LabelOSStable] != runtime.GOOS {
		t.Errorf("status was not posted: %v", n)
	}
}

// What a kubelet finds missing on a Node that is there already it adds with the
// patch that registers the Node.
func TestRegisterPatch(t *testing.T) {
	const (
		capacity = `{"cpu":"4","ephemeral-storage":"129900528Ki","hugepages-1Gi":"0","hugepages-2Mi":"0","memory":"16384256Ki","pods":"110"}`
		pages    = `{"hugepages-1Gi":"0","hugepages-2Mi":"0"}`
	)
	declares := func(features ...string) func(*v1.Node) {
		return func(n *v1.Node) { adopted(n); n.Status.DeclaredFeatures = features }
	}
	for _, test := range []struct {
		name   string
		exists func(*v1.Node)
		set    func(*v1.Node) // by a user's setter
		want   string
	}{
		{name: "nothing of resources", exists: func(n *v1.Node) { adopted(n); n.Status = v1.NodeStatus{} }, want: `{"status":{"allocatable":` + capacity + `,"capacity":` + capacity + `}}`},
		{name: "no allocatable", exists: func(n *v1.Node) { adopted(n); n.Status.Allocatable = nil }, want: `{"status":{"allocatable":` + capacity + `}}`},
		{name: "no capacity", exists: func(n *v1.Node) { adopted(n); n.Status.Capacity = nil }, want: `{"status":{"capacity":` + capacity + `}}`},
		{
			name: "something of resources", want: `{"status":{"allocatable":` + pages + `,"capacity":` + pages + `}}`,
			exists: func(n *v1.Node) {
				adopted(n)
				n.Status.Capacity = resources(map[string]string{"example.com/device": "4"})
				n.Status.Allocatable = resources(map[string]string{"example.com/device": "3"})
			},
		},
		{name: "features that nobody declares any more", exists: declares("A", "B"), want: `{"status":{"declaredFeatures":null}}`},
		{
			name: "features that a user's setter declares", exists: declares("A", "B"), want: `{"status":{"declaredFeatures":["B"]}}`,
			set: func(n *v1.Node) { n.Status.DeclaredFeatures = []string{"B"} },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				s.api.put(test.exists)
				cfg := s.config()
				cfg.Registration.Labels = map[string]string{v1.LabelInstanceTypeStable: "m1"} // as adopted has it
				if test.set != nil {
					cfg.Setters = []Setter{func(_ context.Context, n *v1.Node) error { test.set(n); return nil }}
				}
				s.play(cfg, func() {
					s.sleep(time.Second)
					calls := s.api.take()
					if got := verbs(calls); got != "POST GET ADOPT PATCH PATCH" {
						t.Fatalf("calls %q", got)
					}
					diff(t, "patch", test.want, calls[3].body)
				})
			})
		})
	}
}

// The waits are the kubelet's, and each comes before its attempt.
func TestRegistrationBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.api.refuse("POST", errDown)
		s.play(s.config(), func() {
			start := time.Now()
			s.sleep(35 * time.Second)
			s.Wake() // does not make it faster
			var waits []time.Duration
			last := start
			for _, c := range s.api.take() {
				waits = append(waits, c.at.Sub(last))
				last = c.at
			}
			const ms = time.Millisecond
			diff(t, "waits", []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 6400 * ms, 7000 * ms, 7000 * ms, 7000 * ms}, waits)
			if n := len(s.logs.with("ERROR")); n != 1 {
				t.Errorf("%d errors are logged, want 1", n)
			}
			s.api.refuse("", nil)
			s.sleep(7 * time.Second)
			s.api.took(t, "up again", "POST PATCH")
		})
	})
}

// Before the first sample nobody could say what the Node is.
func TestRegistrationWaitsForFacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.noSample = true
		s.play(s.config(), func() {
			s.sleep(10 * time.Second)
			s.api.took(t, "without a sample", "")
			if err := s.Ready(); !errors.Is(err, errNoFacts) {
				t.Errorf("ready: %v, want %v", err, errNoFacts)
			}
			s.mu.Lock()
			s.noSample = false
			s.mu.Unlock()
			s.sleep(7 * time.Second)
			s.api.took(t, "with one", "POST PATCH")
		})
	})
}

// What an existing Node says is history that the evaluator gets to know before
// anything is posted: a restart does not end a condition.
func TestAdopt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.api.put(func(n *v1.Node) {
			n.Status.Conditions = []v1.NodeCondition{{Type: "MemoryPressure", Status: v1.ConditionTrue, Reason: "KubeletHasInsufficientMemory", LastTransitionTime: at(0)}}
		})
		cfg := s.config()
		cfg.Adopt = func(n *v1.Node) {
			s.api.note("ADOPT", "")
			diff(t, "what is adopted", v1.ConditionTrue, n.Status.Conditions[0].Status)
			s.verdicts[pressure.MemoryPressure].Status = pressure.True
		}
		s.play(cfg, func() {
			s.sleep(time.Second)
			s.api.took(t, "start", "POST GET ADOPT PATCH PATCH")
			c := s.condition("MemoryPressure")
			if c.Status != v1.ConditionTrue || !c.LastTransitionTime.Equal(new(at(0))) {
				t.Errorf("%v", c)
			}
		})
	})
}

// Each call is bounded by itself.
func TestRegistrationIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.api.edit(func() { s.api.hang = "POST" })
		s.play(s.config(), func() {
			s.sleep(100*time.Millisecond + 10*time.Second)
			diff(t, "ready", "create node node-1: context deadline exceeded", errorText(s.Ready()))
			s.api.edit(func() { s.api.hang = "" })
			s.sleep(time.Second)
			diff(t, "ready", nil, s.Ready())
		})
	})
}

// An unreadable page size is not a page size that is gone.
func TestReconcileUnreadHugePages(t *testing.T) {
	existing := &v1.Node{}
	existing.Status.Capacity = resources(map[string]string{"hugepages-2Mi": "1Gi"})
	facts := machineFacts(epoch)
	if !reconcile(existing.DeepCopy(), &v1.Node{}, &facts) {
		t.Error("a page size that is gone is kept")
	}
	facts.Snapshot.Errors[probe.SourceHugePages] = errors.New("permission denied")
	if reconcile(existing, &v1.Node{}, &facts) {
		t.Error("something changed")
	}
}

// Who only follows the Node sends nothing that could be a write, not even to read.
func TestReadOnlyDoesNotPatchToRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.api.put(func(*v1.Node) {})
		s.api.refuse("GET", errForbidden)
		cfg := s.config()
		cfg.Register, cfg.ReadOnly = false, true
		s.play(cfg, func() {
			s.sleep(time.Minute)
			for _, c := range s.api.take() {
				if c.verb != "GET" {
					t.Errorf("a %s", c.verb)
				}
			}
		})
	})
}

// Where nothing may be written yet nothing is asked for either, and once it may be,
// registration does not wait for the next regular pass.
func TestRegistrationWaitsForLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg := s.config()
		cfg.UpdateFrequency = time.Hour
		no := errors.New("cannot tell yet")
		cfg.Allow = func(n *v1.Node) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			return no
		}
		s.play(cfg, func() {
			s.sleep(5 * time.Minute)
			s.api.took(t, "meanwhile", "")
			diff(t, "ready", "cannot tell yet", errorText(s.Ready()))
			diff(t, "logs", []string{`level=ERROR msg="node status is not posted" node=node-1 err="cannot tell yet"`}, s.logs.with("level"))
			s.mu.Lock()
			no = nil
			s.mu.Unlock()
			s.sleep(7 * time.Second)
			s.api.took(t, "then", "POST PATCH")
		})
	})
}

package node

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// The vectors of the kubelet's contract, and where each is held. Those that take
// more than one setter or one comparison are played here, against an API server.
//
//	V1, V2, V3  TestMachineInfo
//	V4          TestReservation
//	V5, V6, V8  probe: TestSnapshotOfMachines
//	V7 to V13   probe/pressure: TestScenarios, v07 to v13; V13 here as well
//	V14         TestPatchAddresses
//	V15 to V19  here; their rules in TestReadyCondition, TestStatusChanged,
//	            TestReporterDelay, TestAnnotationIsNoChange, TestPressureCondition
//	V20         TestAggregate, TestReadyInputs
//	V21         probe/cri: TestSampleReadsEverything
//	V22         cmd/nodeprobe: TestVectors
//	V23 to V25  heartbeat: see there
//	V26, V27    TestRegister
//	V28         TestNodeAddressByName
//	V29         here
//	V30, V31    cmd/nodeprobe: TestVectors
//	V32         probe: TestParseStatfs; probe/pressure: v32_no_inodes

// beats is what a patch of conditions that did not change holds; ready is what
// it says of Ready besides.
func beats(at time.Time, ready string) string {
	now := at.UTC().Format(time.RFC3339)
	var order, items []string
	for _, kind := range []string{"MemoryPressure", "DiskPressure", "PIDPressure", "Ready"} {
		order = append(order, `{"type":"`+kind+`"}`)
		words := ""
		if kind == "Ready" {
			words = ready
		}
		items = append(items, `{"lastHeartbeatTime":"`+now+`",`+words+`"type":"`+kind+`"}`)
	}
	return `{"status":{"$setElementOrder/conditions":[` + strings.Join(order, ",") + `],"conditions":[` + strings.Join(items, ",") + `]}}`
}

func TestVectors(t *testing.T) {
	for name, play := range map[string]func(*testing.T, *scene){
		"V13: a signal cannot be read for 10 passes":                    playFrozen,
		"V15: only the message of Ready changes":                        playMessage,
		"V16: nothing changes":                                          playPeriod,
		"V17: only the annotation differs":                              playAnnotation,
		"V18: the node controller gave up on us":                        playUnknown,
		"V19: foreign words for the same status":                        playForeignWords,
		"V29: the boot ID changes twice":                                playReboots,
		"existing conditions keep their transition times":               playExisting,
		"a cordoned node is recorded at the first pass":                 playCordoned,
		"more memory inside the report period":                          playMemory,
		"a Node that is there already is no news, where a kubelet's is": playAdopted,
		"conditions are recorded at creation, and Ready is not":         playCreated,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { play(t, newScene(t)) })
		})
	}
}

func playFrozen(t *testing.T, s *scene) {
	s.steady(s.config(), func() {
		s.judge(pressure.MemoryPressure, true)
		s.sleep(time.Second)
		s.api.Take()
		s.events.Take()
		s.mu.Lock()
		s.verdicts[pressure.MemoryPressure].Frozen = true
		s.mu.Unlock()
		s.sleep(100 * time.Second)
		s.api.Took(t, "frozen", "")
		apitest.Diff(t, "events", []string(nil), s.events.Take())
		s.sleep(15 * time.Minute)
		for _, c := range s.api.Take() {
			if want := beats(c.At, ""); c.Body != want {
				t.Errorf("%s %s, want %s", c.Verb, c.Body, want)
			}
		}
		apitest.Diff(t, "status", v1.ConditionTrue, s.condition("MemoryPressure").Status)
		apitest.Diff(t, "events", []string(nil), s.events.Take())
	})
}

func playMessage(t *testing.T, s *scene) {
	s.unready = errors.New("a")
	s.steady(s.config(), func() {
		s.sleep(9 * time.Second)
		s.events.Take()
		s.mu.Lock()
		s.unready = errors.New("b")
		s.mu.Unlock()
		s.Wake()
		calls := s.api.Take()
		if len(calls) != 1 || calls[0].Verb != "PATCH" {
			t.Fatalf("calls %v, want one patch", calls)
		}
		apitest.Diff(t, "patch", beats(time.Now(), `"message":"b",`), calls[0].Body)
		apitest.Diff(t, "transition", apitest.At(0), s.condition(v1.NodeReady).LastTransitionTime, apitest.SameTimes())
		apitest.Diff(t, "events", []string(nil), s.events.Take())
		s.sleep(150*time.Second - 1)
		s.api.Took(t, "before half a period", "")
		s.sleep(5*time.Minute + 1)
		if n := len(s.api.Take()); n == 0 {
			t.Error("no patch within one and a half periods")
		}
	})
}

func playPeriod(t *testing.T, s *scene) {
	s.steady(s.config(), func() {
		s.sleep(8 * time.Minute) // the random delay is over, whatever it was
		calls := s.api.Take()
		s.events.Take()
		last := calls[len(calls)-1].At
		for range 3 {
			s.sleep(time.Until(last.Add(5*time.Minute - 1)))
			s.api.Took(t, "within the period", "")
			s.sleep(1)
			calls := s.api.Take()
			if len(calls) != 1 || calls[0].Verb != "PATCH" {
				t.Fatalf("calls %v, want one patch", calls)
			}
			last = calls[0].At
			apitest.Diff(t, "patch", beats(last, ""), calls[0].Body)
		}
		apitest.Diff(t, "events", []string(nil), s.events.Take())
	})
}

func playAnnotation(t *testing.T, s *scene) {
	cfg := s.config()
	cfg.Addresses.ExternalCloudProvider = true
	s.steady(cfg, func() {
		s.api.Put(func(n *v1.Node) { delete(n.Annotations, providedNodeIP) })
		s.sleep(2 * time.Minute)
		s.api.Took(t, "an annotation is no reason", "")
		s.judge(pressure.MemoryPressure, true)
		calls := s.api.Take()
		if len(calls) != 1 || !strings.HasPrefix(calls[0].Body, `{"metadata":{"annotations":{"alpha.kubernetes.io/provided-node-ip":"10.0.0.1"}},"status":`) {
			t.Errorf("calls %v, want a patch that the annotation rides along with", calls)
		}
	})
}

func playUnknown(t *testing.T, s *scene) {
	s.steady(s.config(), func() {
		s.sleep(time.Minute)
		s.events.Take()
		s.api.Put(func(n *v1.Node) {
			c := condition(n, v1.NodeMemoryPressure)
			c.Status, c.Reason, c.Message = v1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
			c.LastTransitionTime = apitest.At(30)
		})
		s.sleep(time.Second)
		got := s.condition(v1.NodeMemoryPressure)
		apitest.Diff(t, "condition", v1.NodeCondition{
			Type: v1.NodeMemoryPressure, Status: v1.ConditionFalse, Reason: "KubeletHasSufficientMemory",
			Message: "kubelet has sufficient memory available", LastTransitionTime: apitest.At(61),
		}, got, apitest.SameTimes())
		apitest.Diff(t, "events", []string{"NodeHasSufficientMemory"}, s.events.Take())
	})
}

func playForeignWords(t *testing.T, s *scene) {
	s.steady(s.config(), func() {
		s.events.Take()
		s.api.Put(func(n *v1.Node) { condition(n, v1.NodeDiskPressure).Reason = "X" })
		s.sleep(2 * time.Minute)
		s.api.Took(t, "no reason for a patch", "")
		s.sleep(8 * time.Minute)
		for _, c := range s.api.Take() {
			apitest.Diff(t, "patch", beats(c.At, ""), c.Body)
		}
		apitest.Diff(t, "reason", "X", s.condition(v1.NodeDiskPressure).Reason)
		apitest.Diff(t, "events", []string(nil), s.events.Take())
	})
}

// This process has seen one boot at most. A second boot ID is somebody else's
// mistake; it is overwritten, and no reboot.
func playReboots(t *testing.T, s *scene) {
	s.api.Put(func(n *v1.Node) { n.Status.NodeInfo.BootID = "last-boot" })
	cfg := s.config()
	s.play(cfg, func() {
		s.sleep(time.Minute)
		if !slices.Contains(s.events.Take(), "Rebooted") {
			t.Error("a reboot is not recorded")
		}
		s.api.Put(func(n *v1.Node) { n.Status.NodeInfo.BootID = "another" })
		s.sleep(time.Minute)
		apitest.Diff(t, "boot ID", "boot", s.api.Current().Status.NodeInfo.BootID)
		apitest.Diff(t, "events", []string(nil), s.events.Take())
	})
}

// wellBefore is a Node as an earlier run has left it.
func wellBefore(n *v1.Node) {
	adopted(n)
	for c := range pressureWords {
		words := pressureWords[c][v1.ConditionFalse]
		n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{
			Type: v1.NodeConditionType(pressure.Condition(c).String()), Status: v1.ConditionFalse,
			Reason: words.reason, Message: words.message, LastTransitionTime: apitest.At(-3600), LastHeartbeatTime: apitest.At(-60),
		})
	}
	n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{
		Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady",
		Message: "kubelet is posting ready status", LastTransitionTime: apitest.At(-7200), LastHeartbeatTime: apitest.At(-60),
	})
}

func playExisting(t *testing.T, s *scene) {
	s.api.Put(wellBefore)
	before := s.api.Current().Status.Conditions
	s.play(s.config(), func() {
		s.sleep(time.Minute)
		for i, c := range s.api.Current().Status.Conditions {
			if !c.LastHeartbeatTime.Equal(new(apitest.At(0))) {
				t.Errorf("%s: heartbeat %v", c.Type, c.LastHeartbeatTime)
			}
			c.LastHeartbeatTime = before[i].LastHeartbeatTime
			apitest.Diff(t, "condition", before[i], c, apitest.SameTimes())
		}
	})
}

// Registration mends what it owns on a Node that is there, in a patch of its own
// before the first status, and holds nothing else.
func TestReconcilePatch(t *testing.T) {
	const annotation = `"volumes.kubernetes.io/controller-managed-attach-detach"`
	for _, test := range []struct {
		name   string
		exists func(*v1.Node)
		attach bool
		want   string // "" is no patch
	}{
		{name: "nothing"},
		{name: "annotation added", attach: true, want: `{"metadata":{"annotations":{` + annotation + `:"true"}}}`},
		{
			name: "annotation removed", exists: func(n *v1.Node) { n.Annotations = map[string]string{attachDetachAnnotation: "true", "a": "b"} },
			want: `{"metadata":{"annotations":{` + annotation + `:null}}}`,
		},
		{
			name: "annotation is right", attach: true,
			exists: func(n *v1.Node) { n.Annotations = map[string]string{attachDetachAnnotation: "true"} },
		},
		{
			name: "labels mended, of others kept", exists: func(n *v1.Node) {
				n.Labels["foreign"], n.Labels[v1.LabelHostname] = "kept", "old"
				delete(n.Labels, v1.LabelInstanceTypeStable)
			},
			want: `{"metadata":{"labels":{"kubernetes.io/hostname":"node-1","node.kubernetes.io/instance-type":"m1"}}}`,
		},
		{
			name: "V27: other labels, taints and the provider's ID are not mended",
			exists: func(n *v1.Node) {
				n.Spec = v1.NodeSpec{ProviderID: "other", Taints: []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}}}
			},
		},
		{
			name: "huge pages", exists: func(n *v1.Node) {
				n.Status.Capacity = apitest.Resources(map[string]string{"cpu": "64", "hugepages-2Mi": "1Gi", "hugepages-64Ki": "0"})
				n.Status.Allocatable = n.Status.Capacity.DeepCopy()
			},
			want: `{"status":{"allocatable":{"hugepages-1Gi":"0","hugepages-2Mi":"0","hugepages-64Ki":null},"capacity":{"hugepages-1Gi":"0","hugepages-2Mi":"0","hugepages-64Ki":null}}}`,
		},
		{
			// On purpose: nodeprobe manages no devices. A kubelet that has none sets
			// what others put here to 0 whenever it starts.
			name: "extended resources are left alone", exists: func(n *v1.Node) {
				n.Status.Capacity["example.com/x"] = apitest.Resources(map[string]string{"x": "3"})["x"]
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				s.api.Put(adopted)
				if test.exists != nil {
					s.api.Put(test.exists)
				}
				cfg := s.config()
				cfg.Registration = Registration{
					Labels: map[string]string{"foo": "bar", v1.LabelInstanceTypeStable: "m1"}, ProviderID: "cloud:///i-1",
					Taints: []v1.Taint{{Key: "new", Effect: v1.TaintEffectNoExecute}}, ControllerAttachDetach: test.attach,
				}
				s.play(cfg, func() {
					s.sleep(time.Second)
					calls := s.api.Take()
					patch := ""
					if apitest.Verbs(calls) == "POST GET ADOPT PATCH PATCH" {
						patch = calls[3].Body
					} else if apitest.Verbs(calls) != "POST GET ADOPT PATCH" {
						t.Fatalf("calls %s", apitest.Verbs(calls))
					}
					apitest.Diff(t, "patch", test.want, patch)
				})
			})
		})
	}
}

// A kubelet records all three at each attempt to register, although nothing has
// changed.
func playAdopted(t *testing.T, s *scene) {
	s.api.Put(wellBefore)
	s.play(s.config(), func() {
		s.sleep(time.Minute)
		apitest.Diff(t, "events", []string(nil), s.events.Take())
	})
}

func playCreated(t *testing.T, s *scene) {
	s.steady(s.config(), func() {
		apitest.Diff(t, "events", []string{"NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"}, s.events.Take())
	})
}

func playCordoned(t *testing.T, s *scene) {
	s.api.Put(wellBefore)
	s.api.Put(func(n *v1.Node) { n.Spec.Unschedulable = true })
	s.play(s.config(), func() {
		s.sleep(time.Minute)
		apitest.Diff(t, "events", []string{"NodeNotSchedulable"}, s.events.Take())
	})
}

func playMemory(t *testing.T, s *scene) {
	memory := 8 * gib
	s.facts(func(f *Facts) { f.Snapshot.Capacity.Memory = memory })
	s.steady(s.config(), func() {
		s.sleep(9 * time.Second)
		s.api.Took(t, "unchanged", "")
		s.mu.Lock()
		memory = 16 * gib
		s.mu.Unlock()
		s.sleep(10 * time.Second)
		calls := s.api.Take()
		if len(calls) != 1 || !strings.HasPrefix(calls[0].Body, `{"status":{"$setElementOrder/conditions":`) ||
			!strings.Contains(calls[0].Body, `"allocatable":{"memory":"16Gi"},"capacity":{"memory":"16Gi"},`) {
			t.Errorf("calls %v, want one patch with the memory", calls)
		}
	})
}

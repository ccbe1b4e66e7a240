package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/wait"
)

// stage is a cluster with deploy/identity and a DaemonSet, and the Nodes "a" and
// "b" that no kubelet runs on.
type stage struct {
	t       *testing.T
	cp      *controlplane.ControlPlane
	kubectl string
}

// newStage applies kustomizations below deploy, in order, the way users do.
func newStage(t *testing.T, kustomizations ...string) *stage {
	t.Helper()
	return newStageWith(t, controlplane.Options{}, kustomizations...)
}

// newStageWith is newStage on a control plane that is special.
func newStageWith(t *testing.T, opts controlplane.Options, kustomizations ...string) *stage {
	t.Helper()
	opts.Controllers, opts.AuditLog = true, true
	s := &stage{t: t, kubectl: controlplane.KubectlForTest(t), cp: controlplane.StartExclusive(t, opts)}
	s.createNode("a")
	s.createNode("b")
	for _, k := range kustomizations {
		s.run("apply", "--validate=strict", "-k", filepath.Join(build.RootForTest(t), "deploy", k))
	}
	return s
}

func (s *stage) run(args ...string) string {
	s.t.Helper()
	return string(run(s.t, nil, s.kubectl, append([]string{"--kubeconfig=" + s.cp.AdminKubeconfig()}, args...)...))
}

// createNode makes a Node as a kubelet leaves it on a busy machine: what an
// admission policy may cost depends on it.
func (s *stage) createNode(name string) {
	s.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}, Annotations: map[string]string{"a": "b"}}}
	for i := range 60 {
		node.Labels[fmt.Sprintf("example.com/label-%d", i)] = strings.Repeat("x", 60)
	}
	must.Get(s.cp.Client().CoreV1().Nodes().Create(s.t.Context(), node, metav1.CreateOptions{}))(s.t)
	must.OK(s.t, s.postAsKubelet(name, corev1.ConditionTrue))
}

// postAsKubelet writes the status of a Node with its kubelet's identity.
func (s *stage) postAsKubelet(name string, ready corev1.ConditionStatus) error {
	user, groups := controlplane.NodeUser(name)
	client, err := kubernetes.NewForConfig(s.cp.ConfigFor(user, groups...))
	if err != nil {
		return err
	}
	node, err := client.CoreV1().Nodes().Get(s.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	node.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("263952812Ki"), "pods": resource.MustParse("250")}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.1.2.3"}, {Type: corev1.NodeHostName, Address: name}}
	node.Status.Images = nil
	for i := range 50 {
		image := fmt.Sprintf("registry.example.com/team/application-with-a-long-name-%d", i)
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{
			Names: []string{image + "@sha256:" + strings.Repeat("0123456789abcdef", 4), image + ":v1.2.3"}, SizeBytes: int64(i) << 20,
		})
	}
	now := metav1.Now()
	node.Status.Conditions = nil
	for _, kind := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: kind, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficient", Message: "kubelet has sufficient", LastHeartbeatTime: now, LastTransitionTime: now,
		})
	}
	for i := range 27 {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeConditionType(fmt.Sprintf("example.com/Problem%d", i)), Status: corev1.ConditionFalse, Reason: "NoProblem",
			Message: strings.Repeat("a long message ", 20), LastHeartbeatTime: now, LastTransitionTime: now,
		})
	}
	node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
		Type: corev1.NodeReady, Status: ready, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now,
	})
	_, err = client.CoreV1().Nodes().UpdateStatus(s.t.Context(), node, metav1.UpdateOptions{})
	return err
}

// pod waits for the DaemonSet's pod on a node, which is scheduled there and, as
// there is no kubelet, never runs.
func (s *stage) pod(node string) (found *corev1.Pod) {
	s.t.Helper()
	s.eventually("the DaemonSet has a pod on node "+node, func() error {
		pods, err := s.cp.Client().CoreV1().Pods("nodeprobe").List(s.t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		if err == nil && len(pods.Items) == 0 {
			err = errors.New("there is none")
		}
		if err == nil {
			found = &pods.Items[0]
		}
		return err
	})
	return found
}

// config returns the client configuration of a pod's token, or without a pod, of
// one for the service account alone. A kubelet asks for the former in the same way.
func (s *stage) config(pod *corev1.Pod) *rest.Config {
	s.t.Helper()
	request := &authenticationv1.TokenRequest{}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
	account := "nodeprobe"
	if pod != nil {
		account = pod.Spec.ServiceAccountName
	}
	answer := must.Get(s.cp.Client().CoreV1().ServiceAccounts("nodeprobe").CreateToken(s.t.Context(), account, request, metav1.CreateOptions{}))(s.t)
	config := s.cp.Config()
	config.CertData, config.KeyData, config.BearerToken = nil, nil, answer.Status.Token
	return config
}

func (s *stage) client(config *rest.Config) kubernetes.Interface {
	s.t.Helper()
	return must.Get(kubernetes.NewForConfig(config))(s.t)
}

// waitPolicies waits until the API server enforces the policies, and fails if the
// type checker has anything to say about them.
func (s *stage) waitPolicies(in kubernetes.Interface, names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.eventually("the controller has checked policy "+name, func() error {
			policy, err := s.cp.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(s.t.Context(), name, metav1.GetOptions{})
			if err == nil && (policy.Status.TypeChecking == nil || policy.Status.ObservedGeneration != policy.Generation) {
				err = errors.New("it has not")
			}
			if err == nil {
				s.wantTyped(policy)
			}
			return err
		})
	}
	s.eventually("the policy is in force", func() error {
		err := patchStatus(s.t, in, "a", `{"metadata":{"labels":{"is-it":"there"}}}`, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errors.New("a label could be set")
		}
		if !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			return err
		}
		return nil
	})
}

func (s *stage) wantTyped(policy *admissionv1.ValidatingAdmissionPolicy) {
	s.t.Helper()
	for _, warning := range policy.Status.TypeChecking.ExpressionWarnings {
		s.t.Errorf("policy %s: %s: %s", policy.Name, warning.FieldRef, warning.Warning)
	}
}

func (s *stage) eventually(what string, check func() error) {
	s.t.Helper()
	wait.Until(s.t, 3*time.Minute, what, check)
}

func wantError(err error, want string) error {
	if err == nil {
		return errors.New("it was allowed")
	}
	if !strings.Contains(err.Error(), want) {
		return err
	}
	return nil
}

// others is all of a Node that is not nodeprobe's, apart from what controllers
// write meanwhile.
func (s *stage) others(name string) string { return othersOf(s.node(name)) }

func othersOf(node *corev1.Node) string {
	node = node.DeepCopy()
	node.ResourceVersion, node.ManagedFields, node.Spec = "", nil, corev1.NodeSpec{}
	node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return strings.HasPrefix(string(c.Type), "nodeprobe.dev/")
	})
	text, err := json.MarshalIndent(node, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(text)
}

const ourDisk = "nodeprobe.dev/DiskPressure"

var longType, longReason = "nodeprobe.dev/" + repeated(63), repeated(128)

// With the pod's identity, under the policy, nodeprobe does all that mode augment
// consists of, and nothing that it asks for is refused.
func TestAugment(t *testing.T) {
	s := newStage(t, "identity", "base")
	pod := s.config(s.pod("a"))
	s.waitPolicies(s.client(pod), "nodeprobe-node", "nodeprobe-event")
	s.augments(t, pod, "system:serviceaccount:nodeprobe:nodeprobe", nil)
}

// augments runs nodeprobe on node a with a pod's token, lets its disk fill, and ends
// it. The API server has to take it for user.
func (s *stage) augments(t *testing.T, pod *rest.Config, user string, config agent.Config) {
	t.Helper()
	fs := pressure.Disk(t, 64)
	before := s.others("a")
	a := s.start(pod, agent.Config{
		"mode": "augment", "rootDirectory": fs.Dir, "evictionHard": agent.Hard(map[string]string{"nodefs.available": "20Mi"}),
		"conditionHeartbeat": "10s",
		// As long as a row can make it.
		"conditions": map[string]any{longType: map[string]any{
			"when": append(slices.Repeat([]string{"memory.available < 1Ki"}, 100), "DiskPressure"), "reason": longReason, "okReason": longReason,
		}},
	}.With(config))
	s.waitCondition(corev1.ConditionFalse)
	posted := nodewatch.Condition(s.node("a"), ourDisk).LastHeartbeatTime
	s.eventually("there is a heartbeat", func() error {
		if last := nodewatch.Condition(s.node("a"), ourDisk).LastHeartbeatTime; !last.After(posted.Time) {
			return fmt.Errorf("the last was at %s", last)
		}
		return nil
	})
	must.OK(t, fs.Fill(10<<20))
	s.waitCondition(corev1.ConditionTrue)
	s.eventually("there is an event", func() error {
		events, err := s.cp.Client().CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=a,reason=DiskIsShort"})
		if err == nil && len(events.Items) != 1 {
			err = fmt.Errorf("there are %d", len(events.Items))
		}
		return err
	})
	must.OK(t, fs.Empty())
	s.waitCondition(corev1.ConditionFalse)
	if c := nodewatch.Condition(s.node("a"), corev1.NodeConditionType(longType)); len(c.Message) != 2048 || c.Reason != longReason {
		t.Errorf("a long condition has a message of %d bytes and reason %s", len(c.Message), c.Reason)
	}
	s.eventually("there is an event with a long message", func() error {
		events, err := s.cp.Client().CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=a,type=Normal,reason=" + longReason})
		if err == nil && (len(events.Items) != 1 || len(events.Items[0].Message) != 1024) {
			err = fmt.Errorf("there are %d, or it is not long", len(events.Items))
		}
		return err
	})
	a.Stop()
	for _, c := range s.node("a").Status.Conditions {
		if strings.HasPrefix(string(c.Type), "nodeprobe.dev/") {
			t.Errorf("after the end there is %s", c.Type)
		}
	}
	if after := s.others("a"); after != before {
		t.Errorf("the rest of the node is now %s, was %s", after, before)
	}
	requests := s.requests(user, "get nodes", "watch nodes", "patch nodes/status", "create events", "patch events")
	if requests["patch nodes/status"] < 4 || requests["create events"] == 0 {
		t.Error("these are not all")
	}
}

func (s *stage) start(pod *rest.Config, config agent.Config) *agent.Agent {
	s.t.Helper()
	kubeconfig := must.Get(s.cp.WriteKubeconfig("pod", pod))(s.t)
	return agent.StartForTest(s.t, agent.Spec{
		Binary: build.ProductForTest(s.t), Dir: s.t.TempDir(), NodeName: "a", Kubeconfig: kubeconfig, Config: agent.Own().With(config),
	})
}

func (s *stage) waitCondition(want corev1.ConditionStatus) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%s is %s", ourDisk, want), func() error {
		if !nodewatch.Has(ourDisk, want)(s.node("a")) {
			return errors.New("it is not")
		}
		return nil
	})
}

// requests reads in the audit log what nodeprobe has asked for: as that user, nothing
// but what is expected, and none of it may have been refused. That there is no such
// object is an answer.
func (s *stage) requests(user string, expected ...string) map[string]int {
	s.t.Helper()
	all := must.Get(s.cp.AuditEvents())(s.t)
	requests := map[string]int{}
	for _, e := range all {
		if !strings.HasPrefix(e.UserAgent, "nodeprobe/") {
			continue
		}
		request := e.Request()
		requests[request]++
		if e.ResponseStatus.Code >= 400 && e.ResponseStatus.Code != 404 || e.ActingUser() != user {
			s.t.Errorf("%s %s by %s: %d", e.Verb, e.RequestURI, e.ActingUser(), e.ResponseStatus.Code)
		}
		if !slices.Contains(expected, request) {
			s.t.Errorf("unexpected: %s", request)
		}
	}
	s.t.Logf("requests: %v", requests)
	return requests
}

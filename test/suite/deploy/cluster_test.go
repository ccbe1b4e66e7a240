package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// newCluster starts a control plane with an admission configuration and the Nodes "a"
// and "b", which have no kubelet, and applies kustomizations in order, as users do.
func newCluster(t *testing.T, admission string, kustomizations ...string) *cluster {
	t.Helper()
	s := &cluster{
		t: t, kubectl: controlplane.Program(t, "kubectl"), deploy: filepath.Join(build.RootForTest(t), "deploy"),
		cp: controlplane.StartExclusive(t, controlplane.Options{Controllers: true, AuditLog: true, Admission: admission}),
	}
	for _, name := range []string{"a", "b"} {
		labels := map[string]string{"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
		for i := range 60 {
			labels[fmt.Sprintf("example.com/label-%d", i)] = repeated(60)
		}
		s.createNode(name, labels)
		s.postAsKubelet(name, corev1.ConditionTrue)
	}
	for _, k := range kustomizations {
		s.apply(k)
	}
	return s
}

func (s *cluster) createNode(name string, labels map[string]string) {
	s.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: map[string]string{"a": "b"}}}
	must.Get(s.cp.Client().CoreV1().Nodes().Create(s.t.Context(), node, metav1.CreateOptions{}))(s.t)
}

// postAsKubelet writes the status that a kubelet posts on a busy machine: what an
// admission policy costs depends on it.
func (s *cluster) postAsKubelet(name string, ready corev1.ConditionStatus) {
	s.t.Helper()
	user, groups := controlplane.NodeUser(name)
	client := s.client(s.cp.ConfigFor(user, groups...))
	node, now := s.node(name), metav1.Now()
	node.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("263952812Ki"), "pods": resource.MustParse("250")}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.1.2.3"}, {Type: corev1.NodeHostName, Address: name}}
	node.Status.Images, node.Status.Conditions = nil, nil
	for i := range 50 {
		image := fmt.Sprintf("registry.example.com/team/application-with-a-long-name-%d", i)
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{
			Names: []string{image + "@sha256:" + strings.Repeat("0123456789abcdef", 4), image + ":v1.2.3"}, SizeBytes: int64(i) << 20,
		})
	}
	add := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, message string) {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: kind, Status: status, Reason: "FromKubelet", Message: message, LastHeartbeatTime: now, LastTransitionTime: now,
		})
	}
	for _, kind := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		add(kind, corev1.ConditionFalse, "kubelet has sufficient")
	}
	for i := range 27 {
		add(corev1.NodeConditionType(fmt.Sprintf("example.com/Problem%d", i)), corev1.ConditionFalse, strings.Repeat("a long message ", 20))
	}
	add(corev1.NodeReady, ready, "")
	must.Get(client.CoreV1().Nodes().UpdateStatus(s.t.Context(), node, metav1.UpdateOptions{}))(s.t)
}

func (s *cluster) node(name string) *corev1.Node {
	s.t.Helper()
	return must.Get(s.cp.Client().CoreV1().Nodes().Get(s.t.Context(), name, metav1.GetOptions{}))(s.t)
}

// others returns what does not belong to nodeprobe in a Node, apart from what
// controllers write meanwhile.
func (s *cluster) others(name string) string {
	s.t.Helper()
	node := s.node(name)
	node.ResourceVersion, node.ManagedFields, node.Spec = "", nil, corev1.NodeSpec{}
	node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return strings.HasPrefix(string(c.Type), "nodeprobe.dev/")
	})
	return string(must.Get(json.MarshalIndent(node, "", " "))(s.t))
}

// pod waits for the DaemonSet's pod on a node, where it is scheduled but, as there is
// no kubelet, never runs.
func (s *cluster) pod(node string) (found *corev1.Pod) {
	s.t.Helper()
	stage.Until(s.t, "the DaemonSet has a pod on node "+node, func() bool {
		opts := metav1.ListOptions{FieldSelector: "spec.nodeName=" + node}
		pods := must.Get(s.cp.Client().CoreV1().Pods("nodeprobe").List(s.t.Context(), opts))(s.t)
		for i := range pods.Items {
			found = &pods.Items[i]
		}
		return found != nil
	})
	return found
}

// config returns the client configuration of a pod's token, which a kubelet requests in
// the same way; without a pod, that of one for the service account alone.
func (s *cluster) config(pod *corev1.Pod) *rest.Config {
	s.t.Helper()
	request, account := &authenticationv1.TokenRequest{}, "nodeprobe"
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
		account = pod.Spec.ServiceAccountName
	}
	answer := must.Get(s.cp.Client().CoreV1().ServiceAccounts("nodeprobe").CreateToken(s.t.Context(), account, request, metav1.CreateOptions{}))(s.t)
	config := s.cp.Config()
	config.CertData, config.KeyData, config.BearerToken = nil, nil, answer.Status.Token
	return config
}

// impersonating returns a configuration that impersonates a node.
func impersonating(config *rest.Config, node string) *rest.Config {
	config = rest.CopyConfig(config)
	config.Impersonate.UserName = "system:node:" + node
	return config
}

func (s *cluster) client(config *rest.Config) kubernetes.Interface {
	s.t.Helper()
	return must.Get(kubernetes.NewForConfig(config))(s.t)
}

// allow gives the service account every verb on resources of a group.
func (s *cluster) allow(group string, resources ...string) {
	s.t.Helper()
	ctx, name := s.t.Context(), metav1.ObjectMeta{GenerateName: "too-much-"}
	role := must.Get(s.cp.Client().RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: name, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{group}, Resources: resources, Verbs: []string{"*"}},
	}}, metav1.CreateOptions{}))(s.t)
	must.Get(s.cp.Client().RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "nodeprobe", Name: "nodeprobe"}},
	}, metav1.CreateOptions{}))(s.t)
}

// Kinds of patches; merge is a strategic one.
const (
	merge     = string(types.StrategicMergePatchType)
	jsonMerge = string(types.MergePatchType)
	jsonPatch = string(types.JSONPatchType)
	applied   = string(types.ApplyPatchType)
)

// request is one to the API server, which must refuse it with a text; it must allow it
// if that is "".
type request struct {
	name string
	in   kubernetes.Interface
	kind string // an HTTP method, or the type of a patch
	uri  string // below /api/v1 unless it begins with a slash
	body string
	want string
}

func (r request) do() error {
	verb, contentType, uri := r.kind, "application/json", r.uri
	if strings.Contains(r.kind, "/") {
		verb, contentType = http.MethodPatch, r.kind
	}
	if !strings.HasPrefix(uri, "/") {
		uri = "/api/v1/" + uri
	}
	err := r.in.CoreV1().RESTClient().Verb(verb).RequestURI(uri).SetHeader("Content-Type", contentType).Body([]byte(r.body)).Do(context.Background()).Error()
	switch {
	case err == nil && r.want != "":
		return fmt.Errorf("%s: it was allowed, want %q", r.name, r.want)
	case err != nil && (r.want == "" || !strings.Contains(err.Error(), r.want)):
		return fmt.Errorf("%s: %.500w, want %q", r.name, err, r.want)
	}
	return nil
}

// table reads requests of testdata, by whom in names.
func table(t *testing.T, name string, in map[string]kubernetes.Interface) (requests []request) {
	t.Helper()
	var rows []struct {
		Name, As, Kind, URI, Want string
		Body                      json.RawMessage
	}
	must.OK(t, yaml.UnmarshalStrict(must.Get(os.ReadFile(filepath.Join("testdata", name+".yaml")))(t), &rows))
	for _, r := range rows {
		if in[r.As] == nil {
			t.Fatalf("%s: nobody is called %q", r.Name, r.As)
		}
		requests = append(requests, request{r.Name, in[r.As], cmp.Or(r.Kind, merge), cmp.Or(r.URI, "nodes/a/status"), string(r.Body), r.Want})
	}
	return requests
}

func check(t *testing.T, requests []request) {
	t.Helper()
	for _, r := range requests {
		must.Note(t, r.do())
	}
}

// status returns a patch with one condition.
func status(condition string) string { return `{"status":{"conditions":[{` + condition + `}]}}` }

const ourCondition = `"type":"nodeprobe.dev/DiskPressure","status":"False","reason":"DiskIsSufficient"`

// waitPolicies waits until the API server enforces the policies. The type checker must
// not have a warning about them.
func (s *cluster) waitPolicies(in kubernetes.Interface, names ...string) {
	s.t.Helper()
	for _, name := range names {
		stage.Until(s.t, "the controller has checked policy "+name, func() bool {
			policy := must.Get(s.cp.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(s.t.Context(), name, metav1.GetOptions{}))(s.t)
			if policy.Status.TypeChecking == nil || policy.Status.ObservedGeneration != policy.Generation {
				return false
			}
			for _, warning := range policy.Status.TypeChecking.ExpressionWarnings {
				s.t.Errorf("policy %s: %s: %s", policy.Name, warning.FieldRef, warning.Warning)
			}
			return true
		})
	}
	stage.Eventually(s.t, "the policy is in force", request{
		"sets a label", in, merge, "nodes/a/status?dryRun=All", `{"metadata":{"labels":{"x":"y"}}}`, "ValidatingAdmissionPolicy",
	}.do)
}

func (s *cluster) start(pod *rest.Config, config agent.Config) *agent.Agent {
	s.t.Helper()
	return agent.StartForTest(s.t, agent.Spec{
		Binary: build.ProductForTest(s.t), Dir: s.t.TempDir(), NodeName: "a",
		Kubeconfig: must.Get(s.cp.WriteKubeconfig("pod", pod))(s.t), Config: agent.Own().With(config),
	})
}

// augments runs nodeprobe on node a with a pod's token, as which the API server must see
// user, lets its disk fill, and ends it. All that mode augment needs is allowed.
func (s *cluster) augments(pod *rest.Config, user string, config agent.Config) {
	s.t.Helper()
	const disk = "nodeprobe.dev/DiskPressure"
	fs, before := pressure.Disk(s.t, 64), s.others("a")
	a := s.start(pod, agent.Config{
		"mode": "augment", "rootDirectory": fs.Dir, "evictionHard": agent.Hard(map[string]string{"nodefs.available": "20Mi"}), "conditionHeartbeat": "10s",
	}.With(config))
	waitCondition := func(want corev1.ConditionStatus) {
		s.t.Helper()
		stage.Until(s.t, fmt.Sprintf("%s is %s", disk, want), func() bool { return nodewatch.Has(disk, want)(s.node("a")) })
	}
	waitCondition(corev1.ConditionFalse)
	posted := nodewatch.Condition(s.node("a"), disk).LastHeartbeatTime.Time
	stage.Until(s.t, "there is a heartbeat", func() bool { return nodewatch.Condition(s.node("a"), disk).LastHeartbeatTime.After(posted) })
	must.OK(s.t, fs.Fill(10<<20))
	waitCondition(corev1.ConditionTrue)
	short := metav1.ListOptions{FieldSelector: "involvedObject.name=a,reason=DiskIsShort"}
	stage.Until(s.t, "there is an event", func() bool {
		return len(must.Get(s.cp.Client().CoreV1().Events("default").List(s.t.Context(), short))(s.t).Items) == 1
	})
	must.OK(s.t, fs.Empty())
	waitCondition(corev1.ConditionFalse)
	a.Stop()
	for _, c := range s.node("a").Status.Conditions {
		if strings.HasPrefix(string(c.Type), "nodeprobe.dev/") {
			s.t.Errorf("after the end there is %s", c.Type)
		}
	}
	if after := s.others("a"); after != before {
		s.t.Errorf("the rest of the node is now %s, was %s", after, before)
	}
	count := s.requests(user, "get nodes", "watch nodes", "patch nodes/status", "create events", "patch events")
	if count["patch nodes/status"] < 4 || count["create events"] == 0 {
		s.t.Errorf("these are not all: %v", count)
	}
}

// requests counts in the audit log what nodeprobe has requested: all of it as user, only
// what is expected, and nothing was refused. That an object does not exist is an answer.
func (s *cluster) requests(user string, expected ...string) map[string]int {
	s.t.Helper()
	count := map[string]int{}
	for _, e := range stage.Requests(s.t, s.cp, "nodeprobe", time.Time{}) {
		count[e.Request()]++
		refused := e.ResponseStatus.Code >= 400 && e.ResponseStatus.Code != 404
		if refused || e.ActingUser() != user || !slices.Contains(expected, e.Request()) {
			s.t.Errorf("%s %s by %s: %d", e.Request(), e.RequestURI, e.ActingUser(), e.ResponseStatus.Code)
		}
	}
	return count
}

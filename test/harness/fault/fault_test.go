package fault_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/fault"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

// newNode makes a Node named after the test, and a proxy and a client for it.
func newNode(t *testing.T) (name string, p *fault.Proxy, client kubernetes.Interface) {
	t.Helper()
	cp := controlplane.StartForTest(t)
	name = controlplane.ObjectName(t)
	user, groups := controlplane.NodeUser(name)
	p = fault.StartForTest(t, cp, user, groups...)
	config := must.Get(clientcmd.BuildConfigFromFlags("", p.Kubeconfig()))(t)
	client = must.Get(kubernetes.NewForConfig(config))(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	must.Get(client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}))(t)
	return name, p, client
}

func patchStatus(ctx context.Context, client kubernetes.Interface, name, reason string) error {
	body := `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"` + reason + `"}]}}`
	_, err := client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, "status")
	return err
}

func readyReason(t *testing.T, name string) string {
	t.Helper()
	node := must.Get(controlplane.StartForTest(t).Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}))(t)
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Reason
		}
	}
	return ""
}

// The proxy must not make anyone more powerful than the user it stands for.
func TestKeepsIdentity(t *testing.T) {
	_, _, client := newNode(t)
	another := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: controlplane.ObjectName(t)}}
	must.Get(controlplane.StartForTest(t).Client().CoreV1().Nodes().Create(t.Context(), another, metav1.CreateOptions{}))(t)
	if err := patchStatus(t.Context(), client, another.Name, "X"); !apierrors.IsForbidden(err) {
		t.Errorf("patch another's status: got %v, want Forbidden", err)
	}
}

// Each fault is met as often as its rule has it, by the requests that the rule is
// about, and the API server sees the request or not as the fault has it.
func TestFaults(t *testing.T) {
	is := func(want error) func(error) bool { return func(err error) bool { return errors.Is(err, want) } }
	failed := func(err error) bool { return err != nil }
	for _, test := range []struct {
		fault fault.Fault
		want  func(error) bool // nil: the request is answered in the end
		seen  bool             // by the API server
		least time.Duration
	}{
		{fault.Status(http.StatusForbidden), apierrors.IsForbidden, false, 0},
		{fault.Status(http.StatusConflict), apierrors.IsConflict, false, 0},
		{fault.Status(http.StatusInternalServerError), apierrors.IsInternalError, false, 0},
		{fault.TooManyRequests(time.Second), nil, true, time.Second}, // client-go repeats it
		{fault.Hang(), is(context.DeadlineExceeded), false, 0},
		{fault.Reset(), failed, false, 0},
		{fault.CutAnswer(), failed, true, 0},
	} {
		t.Run(test.fault.String(), func(t *testing.T) {
			name, p, client := newNode(t)
			p.Inject(fault.Rule{Methods: []string{http.MethodPatch}, Path: "/api/v1/nodes/*/status", Count: 1, Fault: test.fault})
			must.Get(client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}))(t) // which no rule names
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			begin := time.Now()
			err := patchStatus(ctx, client, name, "Seen")
			if test.want == nil && err != nil || test.want != nil && !test.want(err) || time.Since(begin) < test.least {
				t.Errorf("got %v after %s", err, time.Since(begin))
			}
			if got := readyReason(t, name); (got == "Seen") != test.seen {
				t.Errorf("the API server's reason is %q", got)
			}
			must.Note(t, patchStatus(t.Context(), client, name, "After")) // the rule is used up
		})
	}
}

package fault_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"syscall"
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

func TestRecordsRequests(t *testing.T) {
	name, p, client := newNode(t)
	p.Forget()
	must.OK(t, patchStatus(t.Context(), client, name, "Recorded"))
	path := "/api/v1/nodes/" + name + "/status"
	got := must.Get(p.WaitFor(t.Context(), func(r fault.Request) bool { return r.Method == http.MethodPatch }))(t)
	if got.Path != path || got.Code != http.StatusOK || got.Fault != "" || got.ContentType != string(types.StrategicMergePatchType) ||
		!strings.Contains(string(got.Body), "Recorded") || time.Since(got.Time) > time.Minute {
		t.Errorf("recorded %+v", got)
	}
	if n := p.Count(http.MethodGet, ""); n != 0 {
		t.Errorf("%d GETs, want 0", n)
	}
	if n := p.Count("", "/api/v1/nodes/*/status"); n != 1 {
		t.Errorf("%d requests for the status, want 1", n)
	}
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

func TestStatus(t *testing.T) {
	name, p, client := newNode(t)
	for code, is := range map[int]func(error) bool{
		http.StatusForbidden:           apierrors.IsForbidden,
		http.StatusConflict:            apierrors.IsConflict,
		http.StatusInternalServerError: apierrors.IsInternalError,
	} {
		p.Inject(fault.Rule{Methods: []string{http.MethodPatch}, Path: "/api/v1/nodes/*/status", Count: 2, Fault: fault.Status(code)})
		for range 2 {
			if err := patchStatus(t.Context(), client, name, "Unseen"); !is(err) {
				t.Errorf("injected %d: got %v", code, err)
			}
		}
		if _, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("GET, which no rule names: %v", err)
		}
	}
	if got := readyReason(t, name); got != "" {
		t.Errorf("API server saw a request that was answered for it: reason %q", got)
	}
	if err := patchStatus(t.Context(), client, name, "Seen"); err != nil {
		t.Errorf("after the rules were used up: %v", err)
	}
}

func TestTooManyRequests(t *testing.T) {
	name, p, client := newNode(t)
	p.Inject(fault.Rule{Methods: []string{http.MethodPatch}, Count: 1, Fault: fault.TooManyRequests(time.Second)})
	begin := time.Now()
	if err := patchStatus(t.Context(), client, name, "Later"); err != nil {
		t.Errorf("client-go did not repeat the request: %v", err)
	}
	if took := time.Since(begin); took < time.Second {
		t.Errorf("repeated after %s, want 1s or later", took)
	}
	if n := p.Count(http.MethodPatch, ""); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
}

func TestHangAndDelay(t *testing.T) {
	name, p, client := newNode(t)
	remove := p.Inject(fault.Rule{Fault: fault.Hang()})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := patchStatus(ctx, client, name, "Hung"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a deadline exceeded", err)
	}
	remove()
	p.Inject(fault.Rule{Count: 1, Fault: fault.Delay(200 * time.Millisecond)})
	begin := time.Now()
	must.Note(t, patchStatus(t.Context(), client, name, "Delayed"))
	if took := time.Since(begin); took < 200*time.Millisecond {
		t.Errorf("delayed request took %s", took)
	}
}

func TestReset(t *testing.T) {
	name, p, client := newNode(t)
	p.Inject(fault.Rule{Methods: []string{http.MethodPatch}, Count: 1, Fault: fault.Reset()})
	if err := patchStatus(t.Context(), client, name, "Reset"); err == nil {
		t.Error("no error from a reset connection")
	}
	if got := readyReason(t, name); got != "" {
		t.Errorf("API server saw the request: reason %q", got)
	}
	if err := patchStatus(t.Context(), client, name, "After"); err != nil {
		t.Errorf("next request: %v", err)
	}
}

func TestCutAnswer(t *testing.T) {
	name, p, client := newNode(t)
	p.Inject(fault.Rule{Methods: []string{http.MethodPatch}, Count: 1, Fault: fault.CutAnswer()})
	if err := patchStatus(t.Context(), client, name, "Cut"); err == nil {
		t.Error("no error from half an answer")
	}
	if got := readyReason(t, name); got != "Cut" {
		t.Errorf("API server did not do what it was asked: reason %q", got)
	}
	if err := patchStatus(t.Context(), client, name, "After"); err != nil {
		t.Errorf("next request: %v", err)
	}
}

func TestRefuse(t *testing.T) {
	name, p, client := newNode(t)
	p.Refuse()
	// The first may still use the old connection, and find it broken.
	if err := patchStatus(t.Context(), client, name, "Broken"); err == nil {
		t.Error("no error while connections are refused")
	}
	if err := patchStatus(t.Context(), client, name, "Refused"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v, want connection refused", err)
	}
	must.OK(t, p.Accept())
	if err := patchStatus(t.Context(), client, name, "After"); err != nil {
		t.Errorf("after the outage: %v", err)
	}
}

// Watches are answers that do not end; the proxy must pass each event on.
func TestWatch(t *testing.T) {
	name, _, client := newNode(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := must.Get(client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name}))(t)
	defer w.Stop()
	must.OK(t, patchStatus(ctx, client, name, "Watched"))
	for event := range w.ResultChan() {
		node := event.Object.(*corev1.Node)
		if len(node.Status.Conditions) > 0 && node.Status.Conditions[0].Reason == "Watched" {
			return
		}
	}
	t.Error("the change did not come through")
}

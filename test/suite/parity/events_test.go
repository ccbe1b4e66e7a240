package parity

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/wait"
)

func (s *stage) compareLeases() {
	s.t.Helper()
	lease := func(name string) map[string]any {
		var l *coordinationv1.Lease
		wait.Until(s.t, patience, "the lease of "+name+" has an owner", func() (err error) { // a kubelet takes its time
			l, err = s.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(s.t.Context(), name, metav1.GetOptions{})
			if err == nil && len(l.OwnerReferences) == 0 {
				err = fmt.Errorf("it is %v", l)
			}
			return err
		})
		if age := time.Since(l.Spec.RenewTime.Time); age > 20*time.Second {
			s.t.Errorf("lease of %s was renewed %s ago", name, age)
		}
		if owner := l.OwnerReferences[0].UID; owner != s.get(name).UID {
			s.t.Errorf("lease of %s belongs to another node, %s", name, owner)
		}
		return normalLease(l)
	}
	if diff := cmp.Diff(lease(kubeletNode), lease(ourNode)); diff != "" {
		s.t.Errorf("leases (-kubelet +nodeprobe):\n%s", diff)
	}
}

func normalLease(l *coordinationv1.Lease) map[string]any {
	l = l.DeepCopy()
	l.ObjectMeta = metav1.ObjectMeta{
		Name: l.Name, Namespace: l.Namespace, Labels: l.Labels, Annotations: l.Annotations, OwnerReferences: l.OwnerReferences,
	}
	for i := range l.OwnerReferences {
		l.OwnerReferences[i].UID = ""
	}
	l.Spec.RenewTime = nil
	return rename(asMap(l)).(map[string]any)
}

// ownEvents are those of a kubelet that are not about the node's status: it also evicts
// and collects garbage. OOMKill is about other tests' victims.
var ownEvents = regexp.MustCompile(`^(Starting|EvictionThresholdMet|FreeDiskSpaceFailed|ImageGCFailed|ContainerGCFailed|NodeAllocatableEnforced|CgroupV1|InvalidDiskCapacity|PossibleMemoryBackedVolumesOnDisk|OOMKill.*|SystemOOM)$`)

// compareEvents compares the Events about the nodes: all but when and how often they
// were recorded.
func (s *stage) compareEvents() {
	s.t.Helper()
	wait.Until(s.t, settleTime, "both have the same events", func() error { // which are sent in the background
		ours := s.events(ourNode)
		if diff := cmp.Diff(s.events(kubeletNode), ours); diff != "" {
			return fmt.Errorf("(-kubelet +nodeprobe):\n%s", diff)
		}
		s.t.Logf("the same events of both: %s", strings.Join(reasons(ours), ", "))
		return nil
	})
}

// awaitEvent waits for an Event about both.
func (s *stage) awaitEvent(reason string) {
	s.t.Helper()
	for _, name := range []string{kubeletNode, ourNode} {
		wait.Until(s.t, settleTime, "event "+reason+" of "+name, func() error {
			if all := reasons(s.events(name)); !slices.Contains(all, reason) {
				return fmt.Errorf("only %s", all)
			}
			return nil
		})
	}
}

func (s *stage) events(name string) []corev1.Event {
	s.t.Helper()
	list := must.Get(s.client.CoreV1().Events("").List(s.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + name}))(s.t)
	told := map[string]corev1.Event{}
	for _, e := range list.Items {
		// What controllers say of the two is between them.
		if e.Source.Component == "kubelet" && !ownEvents.MatchString(e.Reason) {
			told[e.Source.Component+" "+e.Reason] = normalEvent(e)
		}
	}
	var events []corev1.Event
	for _, e := range told {
		events = append(events, e)
	}
	slices.SortFunc(events, func(a, b corev1.Event) int {
		return strings.Compare(a.Source.Component+a.Reason, b.Source.Component+b.Reason)
	})
	return events
}

func normalEvent(e corev1.Event) corev1.Event {
	own := func(text string) string { return rename(text).(string) }
	e.ObjectMeta = metav1.ObjectMeta{Namespace: e.Namespace}
	e.FirstTimestamp, e.LastTimestamp, e.EventTime = metav1.Time{}, metav1.Time{}, metav1.MicroTime{}
	e.Count, e.Series = 0, nil
	// The kubelet has none, so that kubectl describe node hides its Events.
	e.InvolvedObject.UID = ""
	e.InvolvedObject.Name, e.Message = own(e.InvolvedObject.Name), own(e.Message)
	e.Source.Host, e.ReportingInstance = own(e.Source.Host), own(e.ReportingInstance)
	return e
}

func reasons(events []corev1.Event) []string {
	var all []string
	for _, e := range events {
		all = append(all, e.Reason)
	}
	return all
}

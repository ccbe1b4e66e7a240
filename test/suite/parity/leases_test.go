package parity

import (
	"fmt"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// claims makes volumes with pods on the node that use them, and plays the
// controller of a CSI driver that attaches them.
type claims struct {
	t      *testing.T
	client kubernetes.Interface
	node   string
}

// add makes a volume, and a pod that uses it.
func (c *claims) add(handle string) {
	c.t.Helper()
	const namespace = metav1.NamespaceDefault
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	none := ""
	_, err1 := c.client.CoreV1().PersistentVolumes().Create(c.t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: handle},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes,
			ClaimRef:               &corev1.ObjectReference{Namespace: namespace, Name: handle},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: csiDriver, VolumeHandle: handle}},
		},
	}, metav1.CreateOptions{})
	_, err2 := c.client.CoreV1().PersistentVolumeClaims(namespace).Create(c.t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: handle},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: &none, VolumeName: handle, Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	must.OK(c.t, errors.Join(err1, err2))
	stage.Eventually(c.t, handle+" has a pod", func() error { // its service account comes a little later
		_, err := c.client.CoreV1().Pods(namespace).Create(c.t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: handle},
			Spec: corev1.PodSpec{
				NodeName:   c.node,
				Containers: []corev1.Container{{Name: "c", Image: "none"}},
				Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: handle},
				}}},
			},
		}, metav1.CreateOptions{})
		return err
	})
	stage.Eventually(c.t, handle+" is attached", func() error {
		a, err := c.attachment(handle)
		if err != nil {
			return err
		}
		if a == nil {
			return errors.New("not yet")
		}
		_, err = c.client.StorageV1().VolumeAttachments().Patch(c.t.Context(), a.Name, types.MergePatchType,
			[]byte(`{"status":{"attached":true}}`), metav1.PatchOptions{}, "status")
		return err
	})
	stage.Eventually(c.t, handle+" is on the Node", func() error {
		node, err := c.client.CoreV1().Nodes().Get(context.Background(), c.node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, v := range node.Status.VolumesAttached {
			if v.Name == inUse(handle)[0] {
				return nil
			}
		}
		return fmt.Errorf("attached: %+v", node.Status.VolumesAttached)
	})
}

// attachment returns the volume's VolumeAttachment, or nil. It goes when the
// controller has the volume detached.
func (c *claims) attachment(handle string) (*storagev1.VolumeAttachment, error) {
	all, err := c.client.StorageV1().VolumeAttachments().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i, a := range all.Items {
		if name := a.Spec.Source.PersistentVolumeName; name != nil && *name == handle {
			return &all.Items[i], nil
		}
	}
	return nil, nil
}

func (c *claims) deletePod(handle string) {
	c.t.Helper()
	now := int64(0)
	must.OK(c.t, c.client.CoreV1().Pods(metav1.NamespaceDefault).Delete(c.t.Context(), handle, metav1.DeleteOptions{GracePeriodSeconds: &now}))
}

func (c *claims) waitDetached(handle string) {
	c.t.Helper()
	began := time.Now()
	stage.Eventually(c.t, handle+" is detached", func() error {
		a, err := c.attachment(handle)
		if err == nil && a != nil {
			err = errors.New("not yet")
		}
		return err
	})
	c.t.Logf("%s detached after %s", handle, time.Since(began).Round(time.Millisecond))
}

func (c *claims) mustBeAttached(when, handle string) {
	c.t.Helper()
	a := must.Get(c.attachment(handle))(c.t)
	if a == nil || a.DeletionTimestamp != nil {
		c.t.Errorf("%s: %s is detached although it is mounted", when, handle)
	}
}

// The real controller detaches no volume that is mounted, not even one that
// cannot be told any more, and detaches it when it is unmounted. The node has no
// directory for volumes before the first, as where no driver stages any.
func TestNothingMountedIsDetached(t *testing.T) {
	t.Parallel()
	root := newVolumeRoot(t)
	root.unstaged = true
	cp := controlplane.StartExclusive(t, controlplane.Options{Controllers: true})
	n := newNode(t, cp, agent.Config{"rootDirectory": root.dir})
	a := n.StartReady()
	stage.Eventually(t, "a look has found no volume", func() error {
		_, err := a.Metric(context.Background(), "nodeprobe_volumes_in_use")
		return err
	})
	c := &claims{t, cp.Client(), n.Name}
	attach := true
	must.Get(cp.Client().StorageV1().CSIDrivers().Create(t.Context(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: csiDriver}, Spec: storagev1.CSIDriverSpec{AttachRequired: &attach},
	}, metav1.CreateOptions{}))(t)
	for _, handle := range []string{"mounted", "first", "second"} {
		c.add(handle)
	}
	root.mount("mounted")
	n.waitInUse("mounted")

	// The controller learns of Nodes and of pods separately. The one that is not
	// mounted shows that it has looked.
	time.Sleep(3 * time.Second)
	c.deletePod("mounted")
	c.deletePod("first")
	c.waitDetached("first")
	c.mustBeAttached("mounted", "mounted")

	root.write("mounted", "garbage")
	a.Stop()
	a = n.StartReady()
	stage.WaitLogged(t, a, "volumes in use cannot be read; keeping those known before", 0)
	c.deletePod("second")
	c.waitDetached("second")
	c.mustBeAttached("unknown", "mounted")

	root.unmount("mounted")
	n.waitInUse()
	c.waitDetached("mounted")
}

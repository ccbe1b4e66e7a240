package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

const csiDriver = "disk.example.com"

// volumeRoot is a root directory in which volumes are mounted as a kubelet does.
type volumeRoot struct {
	t   *testing.T
	dir string
}

func newVolumeRoot(t *testing.T) volumeRoot {
	t.Helper()
	need.Root(t)
	return volumeRoot{t, t.TempDir()}
}

// at returns the path of "globalmount", where the volume is mounted, or of a file
// beside it.
func (r volumeRoot) at(handle, name string) string {
	return filepath.Join(r.dir, "plugins/kubernetes.io/csi", csiDriver, "hash of "+handle, name)
}

func (r volumeRoot) mount(handle string) {
	r.t.Helper()
	point := r.at(handle, "globalmount")
	must.OK(r.t, os.MkdirAll(point, 0o700))
	r.write(handle, r.data(handle))
	must.OK(r.t, unix.Mount("none", point, "tmpfs", 0, "size=64k"))
	r.t.Cleanup(func() {
		if err := unix.Unmount(point, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) { // not mounted any more
			r.t.Error(err)
		}
	})
}

func (r volumeRoot) unmount(handle string) {
	r.t.Helper()
	must.OK(r.t, unix.Unmount(r.at(handle, "globalmount"), 0))
}

func (r volumeRoot) data(handle string) string {
	data := must.Get(json.Marshal(map[string]string{"driverName": csiDriver, "volumeHandle": handle}))(r.t)
	return string(data)
}

func (r volumeRoot) write(handle, content string) {
	r.t.Helper()
	must.OK(r.t, os.WriteFile(r.at(handle, "vol_data.json"), []byte(content), 0o600))
}

func inUse(handles ...string) []corev1.UniqueVolumeName {
	var names []corev1.UniqueVolumeName
	for _, handle := range handles {
		names = append(names, corev1.UniqueVolumeName("kubernetes.io/csi/"+csiDriver+"^"+handle))
	}
	return names
}

func (n *node) waitInUse(handles ...string) {
	n.T.Helper()
	n.Eventually(fmt.Sprintf("%q are in use", handles), func(found *corev1.Node) error {
		if !slices.Equal(found.Status.VolumesInUse, inUse(handles...)) {
			return fmt.Errorf("in use: %q", found.Status.VolumesInUse)
		}
		return nil
	})
}

// The Node lists the volumes that are mounted. One that cannot be told any more
// stays there.
func TestVolumesInUse(t *testing.T) {
	t.Parallel()
	root := newVolumeRoot(t)
	n := newNode(t, controlplane.StartForTest(t), agent.Config{
		"rootDirectory": root.dir, "evictionHard": agent.Hard(nil),
		// What is seen early was not seen by looking often.
		"sampleInterval": "1h", "nodeStatusUpdateFrequency": "1h",
	})
	a := n.StartReady()
	n.waitInUse()
	root.mount("b")
	n.waitInUse("b")
	root.mount("a")
	n.waitInUse("a", "b")
	root.unmount("b")
	n.waitInUse("a")

	root.write("a", "garbage")
	root.mount("c")
	n.waitInUse("a", "c")
	stage.WaitLogged(t, a, "volumes in use cannot be read; keeping those known before", 0)
	root.unmount("c") // a volume in use may be called something else, for all we know
	root.mount("d")
	n.waitInUse("a", "c", "d")
	root.write("a", root.data("a"))
	n.waitInUse("a", "d")
	stage.WaitLogged(t, a, "all volumes in use are known again", 0)
	for _, handle := range []string{"a", "d"} {
		root.unmount(handle)
	}
	n.waitInUse()
}

// The limits in the configuration and in the CSINode are on the Node, the configured
// ones where both have one; others are left alone.
func TestVolumeLimits(t *testing.T) {
	t.Parallel()
	n := newNode(t, controlplane.StartForTest(t), agent.Config{
		"volumeLimits":            map[string]int{"fixed.example.com": 7, csiDriver: 3, "attachable-volumes-aws-ebs": 39},
		"volumeLimitsFromCSINode": true,
	})
	count := func(n int32) *storagev1.VolumeNodeResources { return &storagev1.VolumeNodeResources{Count: &n} }
	nodes := n.Client.StorageV1().CSINodes()
	must.Get(nodes.Create(t.Context(), &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: csiDriver, NodeID: "1", Allocatable: count(25)},
			{Name: "other.example.com", NodeID: "1", Allocatable: count(16)},
			{Name: "unbounded.example.com", NodeID: "1"},
		}},
	}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		must.Note(t, nodes.Delete(context.Background(), n.Name, metav1.DeleteOptions{}))
	})
	n.StartReady()
	want := map[corev1.ResourceName]int64{
		"attachable-volumes-csi-fixed.example.com": 7, "attachable-volumes-csi-" + csiDriver: 3, "attachable-volumes-aws-ebs": 39,
		"attachable-volumes-csi-other.example.com": 16, "attachable-volumes-csi-unbounded.example.com": 0,
	}
	n.Eventually(fmt.Sprintf("the limits are %v", want), func(found *corev1.Node) error {
		for name, limit := range want {
			capacity, allocatable := found.Status.Capacity[name], found.Status.Allocatable[name]
			if capacity.Value() != limit || allocatable.Value() != limit {
				return fmt.Errorf("%s: capacity %s, allocatable %s", name, capacity.String(), allocatable.String())
			}
		}
		return nil
	})
}

// claim makes a volume, and a pod on the node that uses it, and plays the controller of
// a CSI driver that attaches it.
func (n *node) claim(handle string) {
	n.T.Helper()
	const namespace = metav1.NamespaceDefault
	meta, create := metav1.ObjectMeta{Name: handle}, metav1.CreateOptions{}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	core, ctx := n.Client.CoreV1(), n.T.Context()
	must.Get(core.PersistentVolumes().Create(ctx, &corev1.PersistentVolume{ObjectMeta: meta, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes,
		ClaimRef:               &corev1.ObjectReference{Namespace: namespace, Name: handle},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: csiDriver, VolumeHandle: handle}},
	}}, create))(n.T)
	must.Get(core.PersistentVolumeClaims(namespace).Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: modes, StorageClassName: new(""), VolumeName: handle, Resources: corev1.VolumeResourceRequirements{Requests: size},
	}}, create))(n.T)
	stage.Eventually(n.T, handle+" has a pod", func() error { // its service account comes a little later
		source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: handle}}
		_, err := core.Pods(namespace).Create(ctx, &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
			NodeName:   n.Name,
			Containers: []corev1.Container{{Name: "c", Image: "none"}},
			Volumes:    []corev1.Volume{{Name: "v", VolumeSource: source}},
		}}, create)
		return err
	})
	stage.Eventually(n.T, handle+" is attached", func() error {
		a := n.attachment(handle)
		if a == nil {
			return errors.New("not yet")
		}
		attached := []byte(`{"status":{"attached":true}}`)
		_, err := n.Client.StorageV1().VolumeAttachments().Patch(ctx, a.Name, types.MergePatchType, attached, metav1.PatchOptions{}, "status")
		return err
	})
	n.Eventually(handle+" is on the Node", func(node *corev1.Node) error {
		if !slices.ContainsFunc(node.Status.VolumesAttached, func(v corev1.AttachedVolume) bool { return v.Name == inUse(handle)[0] }) {
			return fmt.Errorf("attached: %+v", node.Status.VolumesAttached)
		}
		return nil
	})
}

// attachment returns the volume's VolumeAttachment, or nil. It goes when the
// controller has the volume detached.
func (n *node) attachment(handle string) *storagev1.VolumeAttachment {
	n.T.Helper()
	all := must.Get(n.Client.StorageV1().VolumeAttachments().List(n.T.Context(), metav1.ListOptions{}))(n.T)
	for i, a := range all.Items {
		if name := a.Spec.Source.PersistentVolumeName; name != nil && *name == handle {
			return &all.Items[i]
		}
	}
	return nil
}

func (n *node) deletePod(handle string) {
	n.T.Helper()
	must.OK(n.T, n.Client.CoreV1().Pods(metav1.NamespaceDefault).Delete(n.T.Context(), handle, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
}

func (n *node) waitDetached(handle string) {
	n.T.Helper()
	stage.Until(n.T, handle+" is detached", func() bool { return n.attachment(handle) == nil })
}

func (n *node) wantAttached(when, handle string) {
	n.T.Helper()
	if a := n.attachment(handle); a == nil || a.DeletionTimestamp != nil {
		n.T.Errorf("%s: %s is detached although it is mounted", when, handle)
	}
}

// The real controller detaches no volume that is mounted, not even one that cannot be
// told any more, of which a restarted nodeprobe knows from the Node alone, and detaches
// it when it is unmounted. The node has no directory for volumes before the first.
func TestNothingMountedIsDetached(t *testing.T) {
	t.Parallel()
	root := newVolumeRoot(t)
	cp := controlplane.StartExclusive(t, controlplane.Options{Controllers: true})
	n := newNode(t, cp, agent.Config{"rootDirectory": root.dir})
	a := n.StartReady()
	must.Get(cp.Client().StorageV1().CSIDrivers().Create(t.Context(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: csiDriver}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(true)},
	}, metav1.CreateOptions{}))(t)
	for _, handle := range []string{"mounted", "first", "second"} {
		n.claim(handle)
	}
	root.mount("mounted")
	n.waitInUse("mounted")

	// The controller learns of Nodes and of pods separately. The one that is not
	// mounted shows that it has looked.
	time.Sleep(3 * time.Second)
	n.deletePod("mounted")
	n.deletePod("first")
	n.waitDetached("first")
	n.wantAttached("mounted", "mounted")

	root.write("mounted", "garbage")
	a.Stop()
	a = n.StartReady()
	stage.WaitLogged(t, a, "volumes in use cannot be read; keeping those known before", 0)
	n.deletePod("second")
	n.waitDetached("second")
	n.wantAttached("unknown", "mounted")

	root.unmount("mounted")
	n.waitInUse()
	n.waitDetached("mounted")
}

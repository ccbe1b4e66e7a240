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
	"k8s.io/client-go/kubernetes"

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
	// unstaged are mounted for pods alone, as of a driver that does not stage.
	unstaged bool
}

func newVolumeRoot(t *testing.T) *volumeRoot {
	t.Helper()
	need.Root(t)
	return &volumeRoot{t: t, dir: t.TempDir()}
}

// at returns the path of "globalmount", where the volume is mounted, or of a file
// beside it.
func (r *volumeRoot) at(handle, name string) string {
	if r.unstaged {
		if name == "globalmount" {
			name = "mount"
		}
		return filepath.Join(r.dir, "pods/uid of "+handle, "volumes/kubernetes.io~csi", handle, name)
	}
	return filepath.Join(r.dir, "plugins/kubernetes.io/csi", csiDriver, "hash of "+handle, name)
}

func (r *volumeRoot) mount(handle string) {
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

func (r *volumeRoot) unmount(handle string) {
	r.t.Helper()
	must.OK(r.t, unix.Unmount(r.at(handle, "globalmount"), 0))
}

func (r *volumeRoot) data(handle string) string {
	data := must.Get(json.Marshal(map[string]string{"driverName": csiDriver, "volumeHandle": handle}))(r.t)
	return string(data)
}

func (r *volumeRoot) write(handle, content string) {
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
	began := time.Now()
	stage.Eventually(n.T, fmt.Sprintf("%q are in use", handles), func() error {
		found, err := n.Get()
		if err == nil && !slices.Equal(found.Status.VolumesInUse, inUse(handles...)) {
			err = fmt.Errorf("in use: %q", found.Status.VolumesInUse)
		}
		return err
	})
	n.T.Logf("%q in use: seen after %s", handles, time.Since(began).Round(time.Millisecond))
}

// The Node lists the volumes that are mounted. One that cannot be told any more
// stays there, be it known from before or from what the Node says.
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
	history := n.Follow()
	a.Stop()
	root.mount("d")
	a = n.StartReady()
	n.waitInUse("a", "c", "d")
	root.unmount("c") // a volume in use may be called something else, for all we know
	root.mount("e")
	n.waitInUse("a", "c", "d", "e")
	root.write("a", root.data("a"))
	n.waitInUse("a", "d", "e")
	for _, s := range history.All() {
		if s.Node == nil || !slices.Contains(s.Node.Status.VolumesInUse, inUse("a")[0]) {
			t.Errorf("a was left out: %+v", s.Node)
		}
	}
	stage.WaitLogged(t, a, "all volumes in use are known again", 0)
	for _, handle := range []string{"a", "d", "e"} {
		root.unmount(handle)
	}
	n.waitInUse()
}

// The limits in the configuration and in the CSINode are on the Node; others are
// left alone.
func TestVolumeLimits(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	n := newNode(t, cp, agent.Config{
		"volumeLimits":            map[string]int{"fixed.example.com": 7, csiDriver: 3, "attachable-volumes-aws-ebs": 39},
		"volumeLimitsFromCSINode": true,
	})
	limits := func(want map[corev1.ResourceName]int64) {
		t.Helper()
		stage.Eventually(t, fmt.Sprintf("the limits are %v", want), func() error {
			found, err := n.Get()
			if err != nil {
				return err
			}
			for name, limit := range want {
				capacity, allocatable := found.Status.Capacity[name], found.Status.Allocatable[name]
				if capacity.Value() != limit || allocatable.Value() != limit {
					return fmt.Errorf("%s: capacity %s, allocatable %s", name, capacity.String(), allocatable.String())
				}
			}
			return nil
		})
	}
	a := n.StartReady()
	fixed := map[corev1.ResourceName]int64{
		"attachable-volumes-csi-fixed.example.com": 7, "attachable-volumes-csi-" + csiDriver: 3, "attachable-volumes-aws-ebs": 39,
	}
	limits(fixed)
	a.Stop()
	if len(stage.Logged(t, a, "volume limits cannot be read")) > 0 {
		t.Error("a Node without a CSINode is nothing to complain of")
	}
	count := func(n int32) *storagev1.VolumeNodeResources { return &storagev1.VolumeNodeResources{Count: &n} }
	must.Get(cp.Client().StorageV1().CSINodes().Create(t.Context(), &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: csiDriver, NodeID: "1", Allocatable: count(25)},
			{Name: "other.example.com", NodeID: "1", Allocatable: count(16)},
			{Name: "unbounded.example.com", NodeID: "1"},
		}},
	}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		must.Note(t, cp.Client().StorageV1().CSINodes().Delete(context.Background(), n.Name, metav1.DeleteOptions{}))
	})
	a = n.StartReady()
	fixed["attachable-volumes-csi-other.example.com"] = 16 // and what is configured wins
	limits(fixed)
	a.Stop()
	n.Spec.Config = n.Spec.Config.With(agent.Config{"volumeLimits": map[string]int{csiDriver: 4}, "volumeLimitsFromCSINode": false})
	n.Start()
	fixed["attachable-volumes-csi-"+csiDriver] = 4
	limits(fixed)
	if _, ok := n.MustGet().Status.Capacity["attachable-volumes-csi-unbounded.example.com"]; ok {
		t.Error("a driver without a limit has one")
	}
}

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

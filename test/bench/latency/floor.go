package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/status"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
)

// floor is what no agent can be faster than: it has the patch ready, and the
// time runs from when it is sent until a watch shows the Node that it makes. It
// is taken right after each crossing, from as much rest.
type floor struct {
	client  kubernetes.Interface
	history *nodewatch.History
	node    *corev1.Node
}

const floorName = "floor"

// newFloor makes a Node that is like another.
func newFloor(ctx context.Context, s *stage, like *corev1.Node) (*floor, error) {
	user, groups := controlplane.NodeUser(floorName)
	config, err := s.cp.ConfigFor(user, groups...)
	if err != nil {
		return nil, err
	}
	f := &floor{}
	if f.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	if f.history, err = nodewatch.Follow(ctx, s.watcher, floorName); err != nil {
		return nil, err
	}
	f.node, err = f.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: floorName}, Status: *like.Status.DeepCopy(),
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("make floor: %w", err)
	}
	return f, nil
}

// measure flips a condition, as nodeprobe does it.
func (f *floor) measure(ctx context.Context, condition corev1.NodeConditionType) (time.Duration, error) {
	next, flipped := f.node.DeepCopy(), corev1.ConditionTrue
	for i := range next.Status.Conditions {
		c := &next.Status.Conditions[i]
		c.LastHeartbeatTime = metav1.Now()
		if c.Type != condition {
			continue
		}
		if c.Status == flipped {
			flipped = corev1.ConditionFalse
		}
		c.Status, c.LastTransitionTime = flipped, metav1.Now()
	}
	patch, err := status.Patch(f.node, next)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if f.node, err = f.client.CoreV1().Nodes().Patch(ctx, floorName, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return 0, fmt.Errorf("patch floor: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	seen, err := f.history.Wait(ctx, begin, nodewatch.Has(condition, flipped))
	return seen.At.Sub(begin), err
}

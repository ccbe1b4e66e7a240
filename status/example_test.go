package status_test

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/status"
)

// A setter of one's own is one more line of the configuration: it is run on the
// same copy of the Node as the built-in ones, after them, and what it sets is
// compared and posted with the rest.
func ExampleSetter() {
	cfg := status.Config{NodeName: "edge-1"}
	cfg.Setters = append(cfg.Setters, gpuDriver("570.86.15"))

	facts := status.Facts{Snapshot: probe.Snapshot{Time: time.Now()}}
	node, _ := status.InitialNode(context.Background(), &cfg, &facts, time.Now())

	for _, condition := range node.Status.Conditions {
		if condition.Type == "example.com/GPUReady" {
			fmt.Println(condition.Type, condition.Status, condition.Message)
		}
	}
	fmt.Println(node.Labels["example.com/gpu-driver"])
	// Output:
	// example.com/GPUReady True driver 570.86.15 is loaded
	// 570.86.15
}

// gpuDriver says which driver the node's pods will find.
func gpuDriver(version string) status.Setter {
	return func(_ context.Context, node *v1.Node) error {
		node.Labels["example.com/gpu-driver"] = version
		for _, condition := range node.Status.Conditions {
			if condition.Type == "example.com/GPUReady" {
				return nil
			}
		}
		node.Status.Conditions = append(node.Status.Conditions, v1.NodeCondition{
			Type: "example.com/GPUReady", Status: v1.ConditionTrue,
			Reason: "DriverLoaded", Message: "driver " + version + " is loaded",
		})
		return nil
	}
}

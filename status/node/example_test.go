package node_test

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/status/node"
)

// A setter of your own is one more line of the configuration: it runs after the
// built-in ones, and what it sets is compared and posted with the rest.
func ExampleSetter() {
	cfg := node.Config{NodeName: "edge-1"}
	cfg.Setters = append(cfg.Setters, gpuDriver("570.86.15"))

	content := node.New(cfg)
	content.Observe(node.Facts{Snapshot: probe.Snapshot{Time: time.Now()}})
	initial, _, _ := content.Initial(context.Background(), time.Now())

	for _, condition := range initial.Status.Conditions {
		if condition.Type == "example.com/GPUReady" {
			fmt.Println(condition.Type, condition.Status, condition.Message)
		}
	}
	fmt.Println(initial.Labels["example.com/gpu-driver"])
	// Output:
	// example.com/GPUReady True driver 570.86.15 is loaded
	// 570.86.15
}

// gpuDriver shows which driver the node's pods will find.
func gpuDriver(version string) node.Setter {
	return func(_ context.Context, n *v1.Node) error {
		n.Labels["example.com/gpu-driver"] = version
		for _, condition := range n.Status.Conditions {
			if condition.Type == "example.com/GPUReady" {
				return nil
			}
		}
		n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{
			Type: "example.com/GPUReady", Status: v1.ConditionTrue,
			Reason: "DriverLoaded", Message: "driver " + version + " is loaded",
		})
		return nil
	}
}

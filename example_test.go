package nodeprobe_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// setGPUs is a Setter: it shows an extended resource, which needs both capacity and
// allocatable. Modes other than Own do not call it.
func setGPUs(_ context.Context, node *v1.Node) error {
	for _, list := range []v1.ResourceList{node.Status.Capacity, node.Status.Allocatable} {
		list["example.com/gpu"] = resource.MustParse("2")
	}
	return nil
}

// An agent of one's own, which looks at this machine and writes nothing.
func Example() {
	const kind = "example.com/FewPIDs"
	few, err := pressure.ParseClause("pid.available < 1%")
	if err != nil {
		fmt.Println(err)
		return
	}
	cfg := nodeprobe.DefaultConfig()
	cfg.NodeName = "edge-1"
	cfg.Conditions = []pressure.Rule{{Type: kind, When: []pressure.Clause{few}, Reason: "FewPIDs", OKReason: "EnoughPIDs"}}
	cfg.Setters = []nodeprobe.Setter{setGPUs}
	sampled := make(chan struct{})
	first := sync.OnceFunc(func() { close(sampled) })
	cfg.OnSample = func(*probe.Snapshot) { first() }

	agent, err := nodeprobe.New(cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- agent.Run(ctx) }()
	<-sampled

	state := agent.State()
	fmt.Println(state.Mode, state.NodeName)
	for _, v := range state.Verdicts {
		fmt.Println(v.Condition)
	}
	for _, c := range state.Conditions {
		fmt.Println(c.Type)
	}
	fmt.Println(state.Snapshot.Capacity.Memory > 0)

	stop()
	fmt.Println(errors.Is(<-done, context.Canceled))
	// Output:
	// observe edge-1
	// MemoryPressure
	// DiskPressure
	// PIDPressure
	// example.com/FewPIDs
	// true
	// true
}

package cri_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/cri"
)

// A daemon runs the Sampler beside its other tasks, and looks at the latest
// Snapshot when it has a Node to write.
func ExampleSampler() {
	runtime, err := cri.New(cri.Config{Endpoint: "unix:///run/containerd/containerd.sock", Logger: slog.Default()})
	if err != nil {
		fmt.Println(err)
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	wake := func() {
		snap := runtime.Last()
		fmt.Println(snap.Version.RuntimeName+"://"+snap.Version.RuntimeVersion, len(snap.Images), "images")
		if err := snap.Unready(); err != nil {
			fmt.Println("not ready:", err)
		}
	}
	if err := runtime.Run(ctx, wake); ctx.Err() == nil {
		fmt.Println(err)
	}
}

// A node without a container runtime needs no special case: there is nothing to
// wait for, and nothing to be unready for.
func ExampleSampler_noRuntime() {
	runtime, err := cri.New(cri.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	snap := runtime.Last()
	fmt.Println(snap.Endpoint == "", snap.Unready())
	// Output: true <nil>
}

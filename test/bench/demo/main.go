// Command demo shows nodeprobe at work, in about a minute: a real API server,
// the real nodeprobe in mode own, and real pressure on this machine, bounded,
// on memory, disk and process IDs. For each condition it prints how long after
// the limit was crossed the API server said so.
//
//	go run ./bench/demo
//
// It needs root, for the pressure. Whatever it makes or starts is gone when it
// ends, by ^C too.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nodeprobe/nodeprobe/test/bench/command"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

func main() {
	pressure.Main()
	command.Main("demo", run)
}

const nodeName = "demo"

const (
	sampleInterval = 10 * time.Second
	// transition is how long a condition outlasts its cause. A kubelet's five
	// minutes would make for a long demo.
	transition = time.Second
	// flipTimeout is how long a change may take before the demo has failed.
	flipTimeout = 30 * time.Second
	// pace is the time between a change and the next. nodeprobe posts three
	// changes at once and six a minute, whatever flaps; a faster demo would
	// measure how long it holds them back.
	pace = 8 * time.Second
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	binary := flags.String("nodeprobe", "", "show this `file` instead of building it from the tree")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root: it takes memory and process IDs, in cgroups, and mounts a small filesystem")
	}
	dir, err := os.MkdirTemp("", "nodeprobe-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	// Building takes minutes where nothing is cached, and says so; the rest of
	// the demo speaks for itself.
	if _, err := controlplane.Build(ctx, stderr); err != nil {
		return unlessInterrupted(ctx, err)
	}
	if *binary == "" {
		if *binary, err = build.Product(ctx, dir, nil); err != nil {
			return unlessInterrupted(ctx, err)
		}
	}
	begin := time.Now()
	cp, err := controlplane.Start(ctx, controlplane.Options{})
	if err != nil {
		return unlessInterrupted(ctx, err)
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()
	kubeconfig, err := cp.NodeKubeconfig(nodeName)
	if err != nil {
		return err
	}
	version, err := cp.Client().Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("get API server's version: %w", err)
	}
	s := &stage{out: stdout, cp: cp, begin: time.Now()}
	s.say("etcd and kube-apiserver %s are ready after %s", version.GitVersion, time.Since(begin).Round(100*time.Millisecond))

	fs, err := pressure.Disk(64)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fs.Close()) }()
	scenes, err := newScenes(fs)
	if err != nil {
		return err
	}

	if s.history, err = nodewatch.Follow(ctx, cp.Client(), nodeName); err != nil {
		return err
	}
	s.agent, err = agent.Start(ctx, agent.Spec{
		Binary: *binary, Dir: dir, NodeName: nodeName, Kubeconfig: kubeconfig,
		Config: config(fs.Dir, scenes),
	})
	if err != nil {
		return unlessInterrupted(ctx, err)
	}
	defer func() {
		s.agent.Stop()
		if err != nil && ctx.Err() == nil {
			fmt.Fprintf(stderr, "nodeprobe's last lines:\n%s\n", process.LogTail(s.agent.LogFile, 20))
		}
	}()
	s.say("nodeprobe runs in mode own (pid %d), with a sample every %s", s.agent.PID(), sampleInterval)
	return unlessInterrupted(ctx, s.perform(ctx, scenes))
}

// unlessInterrupted returns err, or that somebody pressed ^C: what failed
// because of that is of no interest.
func unlessInterrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// config is one nodeprobe configuration for all scenes.
func config(rootDirectory string, scenes []*scene) agent.Config {
	limits := map[string]string{}
	for _, s := range scenes {
		limits[s.Signal] = s.Threshold
	}
	return agent.Own().With(agent.Config{
		"bpf":                              "auto",
		"sampleInterval":                   sampleInterval.String(),
		"rootDirectory":                    rootDirectory,
		"evictionHard":                     agent.Hard(limits),
		"evictionPressureTransitionPeriod": transition.String(),
		"logFormat":                        "text",
	})
}

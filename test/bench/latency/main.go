// Command latency measures how long it takes from the moment at which a limit is
// crossed until nodeprobe's user space knows, and until the Node at a real API
// server says so: for memory, PIDs and disk. It prints one RESULT line for each
// figure that has a budget.
//
//	go run ./bench/latency                # 50 crossings of each
//	go run ./bench/latency -peer kubelet  # and a few that a kubelet sees too
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
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/test/bench/command"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

func main() {
	pressure.Main()
	command.Main("latency", run)
}

// options are flags, with environment variables for "make bench-latency" as
// their defaults.
type options struct {
	crossings, peerCrossings int
	peer                     string
	only                     string
	binary                   string
}

func parse(args []string, getenv func(string) string, stderr io.Writer) (o options, err error) {
	number := func(name string, otherwise int) int {
		text := getenv(name)
		if text == "" {
			return otherwise
		}
		n, bad := strconv.Atoi(text)
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("$%s: %w", name, bad))
		}
		return n
	}
	flags := flag.NewFlagSet("latency", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.crossings, "crossings", number("CROSSINGS", 50), "how many to make of each signal's limit ($CROSSINGS)")
	flags.StringVar(&o.peer, "peer", getenv("PEER"), "also compare with this `program`: kubelet ($PEER)")
	flags.IntVar(&o.peerCrossings, "peer-crossings", number("PEER_CROSSINGS", 6), "how many to make of each limit for the peer ($PEER_CROSSINGS)")
	flags.StringVar(&o.only, "only", "", "only this `load`: memory, pid or disk")
	flags.StringVar(&o.binary, "nodeprobe", "", "measure this `file` instead of building it from the tree")
	if bad := flags.Parse(args); bad != nil || err != nil {
		return o, errors.Join(err, bad)
	}
	switch {
	case o.crossings < 1 || o.peerCrossings < 1:
		return o, errors.New("less than one crossing")
	case !slices.Contains([]string{"", "memory", "pid", "disk"}, o.only):
		return o, fmt.Errorf("load %q is not known", o.only)
	case o.peer != "" && o.peer != "kubelet":
		return o, fmt.Errorf("peer %q is not known", o.peer)
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, os.Getenv, stderr)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root: it fills a filesystem that it mounts, and nodeprobe its BPF programs")
	}
	dir, err := os.MkdirTemp("", "nodeprobe-latency-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if o.binary == "" {
		if o.binary, err = build.Product(ctx, dir, stderr); err != nil {
			return err
		}
	}
	cp, err := controlplane.Start(ctx, controlplane.Options{Log: stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()
	fs, err := pressure.Disk(filesystemSize)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fs.Close()) }()
	loads, err := newLoads(fs, fleet)
	defer func() {
		for _, l := range loads {
			err = errors.Join(err, l.ramp.Close())
		}
	}()
	if err != nil {
		return err
	}
	wanted := slices.DeleteFunc(slices.Clone(loads), func(l *load) bool { return o.only != "" && l.name != o.only })

	config := cp.Config()
	config.ContentType = runtime.ContentTypeProtobuf // decoding JSON takes its time
	watcher, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	s := &stage{cp: cp, watcher: watcher, binary: o.binary, dir: dir, rootfs: fs.Dir}
	var all []*series
	for _, l := range wanted {
		begin := time.Now()
		result, err := s.run(ctx, l, o.crossings)
		if err != nil {
			return fmt.Errorf("%s: %w", l.signal, err)
		}
		fmt.Fprintf(stderr, "%s took %s\n", l.signal, time.Since(begin).Round(time.Second))
		if err := result.print(stdout); err != nil {
			return err
		}
		all = append(all, result)
	}
	var beside []*comparison
	if o.peer != "" {
		begin := time.Now()
		if beside, err = s.compare(ctx, wanted, o.peerCrossings, stderr); err != nil {
			return fmt.Errorf("beside %s: %w", o.peer, err)
		}
		fmt.Fprintf(stderr, "%s took %s\n", o.peer, time.Since(begin).Round(time.Second))
		if err := printComparisons(stdout, beside); err != nil {
			return err
		}
	}
	fmt.Fprintln(stdout)
	for _, result := range all {
		result.printResults(stdout)
	}
	for _, result := range beside {
		result.printResults(stdout)
	}
	return nil
}

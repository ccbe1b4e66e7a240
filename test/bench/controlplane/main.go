// Command controlplane runs a Kubernetes control plane (etcd and
// kube-apiserver) on the loopback interface until it is interrupted.
//
//	go run ./bench/controlplane                 # prints how to use kubectl with it
//	go run ./bench/controlplane -node worker-1  # and a kubeconfig for that node
//	go run ./bench/controlplane -build-only     # only fills the build cache
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second ^C ends the program at once; the kernel then ends its processes.
	context.AfterFunc(ctx, stop)
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("controlplane", flag.ContinueOnError)
	flags.SetOutput(stderr)
	buildOnly := flags.Bool("build-only", false, "build the programs into the cache, print where they are, and exit")
	dir := flags.String("dir", "", "keep data, certificates and logs in this `directory` (default: a temporary one, removed at the end)")
	node := flags.String("node", "", "also write a kubeconfig for the node of this `name`")
	audit := flags.Bool("audit", false, "record every request in audit.log")
	controllers := flags.Bool("controllers", false, "run kube-controller-manager and kube-scheduler as well")
	if err := flags.Parse(args); err != nil {
		return err
	}

	if *buildOnly {
		files, err := controlplane.Build(ctx, stderr)
		if err != nil {
			return err
		}
		for _, file := range slices.Sorted(maps.Values(files)) {
			fmt.Fprintln(stdout, file)
		}
		return nil
	}

	begin := time.Now()
	cp, err := controlplane.Start(ctx, controlplane.Options{Dir: *dir, Log: stderr, AuditLog: *audit, Controllers: *controllers})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()

	fmt.Fprintf(stdout, "ready after %s; files in %s\n\n", time.Since(begin).Round(100*time.Millisecond), cp.Dir())
	fmt.Fprintf(stdout, "export KUBECONFIG=%s\nkubectl get nodes,leases -A\n\n", cp.AdminKubeconfig())
	if *node != "" {
		kubeconfig, err := cp.NodeKubeconfig(*node)
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "as node %s: --kubeconfig %s\n\n", *node, kubeconfig)
	}
	fmt.Fprintln(stdout, "^C stops it.")

	select {
	case <-ctx.Done():
		return nil
	case <-cp.Exited("etcd"):
		return fmt.Errorf("etcd ended; see its log in %s", cp.Dir())
	case <-cp.Exited("kube-apiserver"):
		return fmt.Errorf("kube-apiserver ended; see its log in %s", cp.Dir())
	}
}

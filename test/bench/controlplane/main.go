// Command controlplane runs a Kubernetes control plane (etcd and
// kube-apiserver) on the loopback interface until it is interrupted.
//
//	go run ./bench/controlplane                 # prints how to use kubectl with it
//	go run ./bench/controlplane -node worker-1  # and a kubeconfig for that node
//	go run ./bench/controlplane -build-only     # only fills the build cache
package main

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

func main() { program.Main("controlplane", run) }

func run(p *program.P) {
	buildOnly := p.Flags.Bool("build-only", false, "build the programs into the cache, print where they are, and exit")
	dir := p.Flags.String("dir", "", "keep data, certificates and logs in this `directory` (default: a temporary one, removed at the end)")
	node := p.Flags.String("node", "", "also write a kubeconfig for the node of this `name`")
	audit := p.Flags.Bool("audit", false, "record every request in audit.log")
	controllers := p.Flags.Bool("controllers", false, "run kube-controller-manager and kube-scheduler as well")
	p.Parse()
	if *buildOnly {
		files := controlplane.Build(p)
		for _, file := range slices.Sorted(maps.Values(files)) {
			fmt.Fprintln(p.Out, file)
		}
		return
	}
	begin := time.Now()
	cp := p.ControlPlane(controlplane.Options{Dir: *dir, AuditLog: *audit, Controllers: *controllers})
	fmt.Fprintf(p.Out, "ready after %s; files in %s\n\n", time.Since(begin).Round(100*time.Millisecond), cp.Dir())
	fmt.Fprintf(p.Out, "export KUBECONFIG=%s\nkubectl get nodes,leases -A\n\n", cp.AdminKubeconfig())
	if *node != "" {
		fmt.Fprintf(p.Out, "as node %s: --kubeconfig %s\n\n", *node, must.Get(cp.NodeKubeconfig(*node))(p))
	}
	fmt.Fprintln(p.Out, "^C stops it.")
	select {
	case <-p.Context().Done():
	case <-cp.Exited("etcd"):
		p.Fatalf("etcd ended; see its log in %s", cp.Dir())
	case <-cp.Exited("kube-apiserver"):
		p.Fatalf("kube-apiserver ended; see its log in %s", cp.Dir())
	}
}

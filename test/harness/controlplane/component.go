package controlplane

import (
	"context"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

// component is one program of a control plane. To add another: a "tool" line in
// the go.mod of its nested module, its arguments in args, and a row below.
type component struct {
	target build.Target
	// port is where it serves; its arguments have it as $port.
	port func(cp *ControlPlane) int
	// more are arguments that not every control plane has.
	more func(cp *ControlPlane) []string
	// ready returns nil once the program can be used.
	ready func(ctx context.Context, cp *ControlPlane) error
}

var (
	etcd = &component{
		target: build.Target{
			Name:    "etcd",
			Dir:     "harness/controlplane/modules/etcd",
			Package: "go.etcd.io/etcd/server/v3",
			Module:  "go.etcd.io/etcd/server/v3",
		},
		port: func(cp *ControlPlane) int { return cp.ports.etcdClient },
		ready: func(ctx context.Context, cp *ControlPlane) error {
			return process.GetOK(ctx, loopbackURL("http", cp.ports.etcdClient)+"/readyz")
		},
	}

	apiServer = &component{
		target: kubernetesTarget("kube-apiserver"),
		port:   func(cp *ControlPlane) int { return cp.ports.apiServer },
		more: func(cp *ControlPlane) (args []string) {
			if cp.opts.Admission != "" {
				args = append(args, "--admission-control-config-file="+cp.file("admission.yaml"))
			}
			if cp.opts.AuditLog {
				args = append(args, "--audit-policy-file="+cp.file("audit-policy.yaml"), "--audit-log-path="+cp.file("audit.log"), "--audit-log-mode=blocking")
			}
			return args
		},
		ready: apiServerReady,
	}

	controllerManager = &component{
		target: kubernetesTarget("kube-controller-manager"),
		port:   func(cp *ControlPlane) int { return cp.ports.controllerManager },
		more: func(cp *ControlPlane) (args []string) {
			if grace := cp.opts.NodeGrace; grace > 0 {
				args = []string{"--node-monitor-grace-period=" + grace.String(), "--node-monitor-period=" + (grace / 8).String()}
			}
			return args
		},
		ready: func(ctx context.Context, cp *ControlPlane) error { return cp.healthy(ctx, cp.ports.controllerManager) },
	}

	scheduler = &component{
		target: kubernetesTarget("kube-scheduler"),
		port:   func(cp *ControlPlane) int { return cp.ports.scheduler },
		ready:  func(ctx context.Context, cp *ControlPlane) error { return cp.healthy(ctx, cp.ports.scheduler) },
	}

	// components in the order in which they start; they stop in the reverse.
	components = []*component{etcd, apiServer}
	// controllers are started after them where Options ask for it.
	controllers = []*component{controllerManager, scheduler}
)

// argFiles have the arguments of each program: one a line, with variables and comments.
//
//go:embed args
var argFiles embed.FS

// args are called for when the program is about to start; the ports and the files in
// cp.dir exist then.
func (c *component) args(cp *ControlPlane) []string {
	values := map[string]string{
		"dir": cp.dir, "kubeconfig": cp.adminKubeconfig, "port": strconv.Itoa(c.port(cp)),
		"etcd": loopbackURL("http", cp.ports.etcdClient), "etcdPeer": loopbackURL("http", cp.ports.etcdPeer),
	}
	var args []string
	for line := range strings.Lines(string(sure(argFiles.ReadFile("args/" + c.target.Name)))) {
		if !strings.HasPrefix(line, "#") {
			args = append(args, os.Expand(strings.TrimSpace(line), func(name string) string { return values[name] }))
		}
	}
	if c.more != nil {
		args = append(args, c.more(cp)...)
	}
	return args
}

// kubernetesTarget is a program that the module of the API server has too.
func kubernetesTarget(name string) build.Target {
	return build.Target{
		Name:       name,
		Dir:        "harness/controlplane/modules/kubernetes",
		Package:    "k8s.io/kubernetes/cmd/" + name,
		Module:     "k8s.io/kubernetes",
		VersionVar: "k8s.io/component-base/version.gitVersion",
	}
}

// healthy asks a controller's own server whether its loops run.
func (cp *ControlPlane) healthy(ctx context.Context, port int) error {
	config := cp.Config()
	config.Host = loopbackURL("https", port)
	client, err := rest.UnversionedRESTClientFor(unversioned(config))
	if err != nil {
		return err
	}
	return client.Get().AbsPath("/healthz").Do(ctx).Error()
}

func unversioned(config *rest.Config) *rest.Config {
	config.GroupVersion = &schema.GroupVersion{}
	config.NegotiatedSerializer = scheme.Codecs
	return config
}

func apiServerReady(ctx context.Context, cp *ControlPlane) error {
	// Covers RBAC: the default roles exist once /readyz says ok.
	if err := cp.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
		return fmt.Errorf("get /readyz: %w", err)
	}
	// Does not cover the system namespaces: a loop makes them a little later,
	// and without this one no node can create its Lease.
	_, err := cp.client.CoreV1().Namespaces().Get(ctx, corev1.NamespaceNodeLease, metav1.GetOptions{})
	return err
}

// Build builds whatever a control plane needs, with controllers, and the cache
// lacks, and returns the programs' files by name.
func Build(t testing.TB) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, c := range slices.Concat(components, controllers) {
		files[c.target.Name] = build.Cached(t, c.target)
	}
	return files
}

func (cp *ControlPlane) file(name string) string { return filepath.Join(cp.dir, name) }

func loopbackURL(scheme string, port int) string {
	return scheme + "://127.0.0.1:" + strconv.Itoa(port)
}

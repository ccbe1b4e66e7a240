package controlplane

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
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
// the go.mod of its nested module, and a row below.
type component struct {
	target build.Target
	// args is called when the program is about to start; the ports and the
	// files in cp.dir exist then.
	args func(cp *ControlPlane) []string
	// ready returns nil once the program can be used.
	ready func(ctx context.Context, cp *ControlPlane) error
}

const (
	etcdModule       = "harness/controlplane/modules/etcd"
	kubernetesModule = "harness/controlplane/modules/kubernetes"
)

var (
	etcd = &component{
		target: build.Target{
			Name:    "etcd",
			Dir:     etcdModule,
			Package: "go.etcd.io/etcd/server/v3",
			Module:  "go.etcd.io/etcd/server/v3",
		},
		args: func(cp *ControlPlane) []string {
			client, peer := loopbackURL("http", cp.ports.etcdClient), loopbackURL("http", cp.ports.etcdPeer)
			return []string{
				"--data-dir=" + cp.file("etcd"),
				"--listen-client-urls=" + client,
				"--advertise-client-urls=" + client,
				"--listen-peer-urls=" + peer,
				"--initial-advertise-peer-urls=" + peer,
				"--initial-cluster=default=" + peer,
				"--log-level=warn",
				// The data need not outlive the machine, only the process.
				"--unsafe-no-fsync",
			}
		},
		ready: func(ctx context.Context, cp *ControlPlane) error {
			return process.GetOK(ctx, loopbackURL("http", cp.ports.etcdClient)+"/readyz")
		},
	}

	apiServer = &component{
		target: kubernetesTarget("kube-apiserver"),
		args:   apiServerArgs,
		ready:  apiServerReady,
	}

	controllerManager = &component{
		target: kubernetesTarget("kube-controller-manager"),
		args: func(cp *ControlPlane) []string {
			args := append(cp.controllerArgs(cp.ports.controllerManager),
				"--service-account-private-key-file="+cp.file("service-account.key"),
				"--root-ca-file="+cp.file("ca.crt"),
				"--use-service-account-credentials=true",
				"--allocate-node-cidrs=true",
				"--cluster-cidr="+clusterCIDR,
			)
			if grace := cp.opts.NodeGrace; grace > 0 {
				args = append(args, "--node-monitor-grace-period="+grace.String(), "--node-monitor-period="+(grace/8).String())
			}
			return args
		},
		ready: func(ctx context.Context, cp *ControlPlane) error {
			return cp.healthy(ctx, cp.ports.controllerManager)
		},
	}

	scheduler = &component{
		target: kubernetesTarget("kube-scheduler"),
		args:   func(cp *ControlPlane) []string { return cp.controllerArgs(cp.ports.scheduler) },
		ready:  func(ctx context.Context, cp *ControlPlane) error { return cp.healthy(ctx, cp.ports.scheduler) },
	}

	// components in the order in which they start; they stop in the reverse.
	components = []*component{etcd, apiServer}
	// controllers are started after them where Options ask for it.
	controllers = []*component{controllerManager, scheduler}
)

// clusterCIDR is what the controller manager takes each Node's podCIDR from.
const clusterCIDR = "10.244.0.0/16"

// kubernetesTarget is a program that the module of the API server has too.
func kubernetesTarget(name string) build.Target {
	return build.Target{
		Name:       name,
		Dir:        kubernetesModule,
		Package:    "k8s.io/kubernetes/cmd/" + name,
		Module:     "k8s.io/kubernetes",
		VersionVar: "k8s.io/component-base/version.gitVersion",
	}
}

// controllerArgs are the arguments that the programs with an administrator's
// rights share.
func (cp *ControlPlane) controllerArgs(port int) []string {
	return []string{
		"--kubeconfig=" + cp.adminKubeconfig,
		"--authentication-kubeconfig=" + cp.adminKubeconfig,
		"--authorization-kubeconfig=" + cp.adminKubeconfig,
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + cp.file("kube-apiserver.crt"),
		"--tls-private-key-file=" + cp.file("kube-apiserver.key"),
		"--leader-elect=false",
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

func apiServerArgs(cp *ControlPlane) []string {
	args := []string{
		"--etcd-servers=" + loopbackURL("http", cp.ports.etcdClient),
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(cp.ports.apiServer),
		"--tls-cert-file=" + cp.file("kube-apiserver.crt"),
		"--tls-private-key-file=" + cp.file("kube-apiserver.key"),
		"--client-ca-file=" + cp.file("ca.crt"),
		"--cert-dir=" + cp.file("kube-apiserver"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + cp.file("service-account.key"),
		"--service-account-signing-key-file=" + cp.file("service-account.key"),
		"--service-cluster-ip-range=10.0.0.0/24",
		// Loopback is not a valid endpoint address, and nothing here looks for
		// the API server by its Service.
		"--endpoint-reconciler-type=none",
	}
	if cp.opts.Admission != "" {
		args = append(args, "--admission-control-config-file="+cp.file("admission.yaml"))
	}
	if cp.opts.AuditLog {
		args = append(args,
			"--audit-policy-file="+cp.file("audit-policy.yaml"),
			"--audit-log-path="+cp.file("audit.log"),
			"--audit-log-mode=blocking")
	}
	return args
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

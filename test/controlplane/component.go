package controlplane

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/build"
	"github.com/nodeprobe/nodeprobe/test/process"
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
	etcdModule       = "controlplane/modules/etcd"
	kubernetesModule = "controlplane/modules/kubernetes"
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
		target: build.Target{
			Name:       "kube-apiserver",
			Dir:        kubernetesModule,
			Package:    "k8s.io/kubernetes/cmd/kube-apiserver",
			Module:     "k8s.io/kubernetes",
			VersionVar: "k8s.io/component-base/version.gitVersion",
		},
		args:  apiServerArgs,
		ready: apiServerReady,
	}

	// components in the order in which they start; they stop in the reverse.
	components = []*component{etcd, apiServer}
)

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

// Build builds whatever a control plane needs and the cache lacks, and returns
// the programs' files by name.
func Build(ctx context.Context, log io.Writer) (map[string]string, error) {
	files := make(map[string]string, len(components))
	for _, c := range components {
		file, err := build.Cached(ctx, c.target, log)
		if err != nil {
			return nil, err
		}
		files[c.target.Name] = file
	}
	return files, nil
}

func (cp *ControlPlane) file(name string) string { return filepath.Join(cp.dir, name) }

func loopbackURL(scheme string, port int) string {
	return scheme + "://127.0.0.1:" + strconv.Itoa(port)
}

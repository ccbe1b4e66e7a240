// Package controlplane runs a real Kubernetes control plane on the loopback
// interface, from nothing to ready in seconds: etcd and kube-apiserver, and
// kube-controller-manager and kube-scheduler for who asks for them.
//
// The programs are built from the modules pinned below modules/ and cached (see
// package build). Nothing of it needs root or touches anything but its own
// directory, and nothing of it outlives the process that started it.
package controlplane

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

// readyTimeout bounds the start of one component. A busy two-core machine needs
// a tenth of it at most.
const readyTimeout = 3 * time.Minute

// Options of a control plane. The zero value is useful.
type Options struct {
	// Dir holds data, certificates, kubeconfigs and logs. It is made if absent,
	// must not hold another control plane's files, and is left in place by Stop.
	// Empty means a temporary directory, which Stop removes.
	Dir string
	// CopyPrograms runs the programs from Dir as well, for a Dir in memory.
	CopyPrograms bool
	// AuditLog makes the API server record every request for AuditEvents.
	AuditLog bool
	// Controllers starts kube-controller-manager and kube-scheduler as well.
	Controllers bool
	// NodeGrace is how long a Node may be silent before the controller manager
	// takes it for lost, in whole seconds; 0 is Kubernetes' own default.
	NodeGrace time.Duration
	// Admission is the API server's AdmissionConfiguration, as YAML. Empty is none.
	Admission string
}

// ControlPlane is a running control plane. The caller must Stop it.
// Its methods are safe for concurrent use.
type ControlPlane struct {
	opts      Options
	dir       string
	removeDir bool
	binaries  map[string]string
	ca        *authority
	ports     struct{ etcdClient, etcdPeer, apiServer, controllerManager, scheduler int }

	admin           *rest.Config
	adminKubeconfig string
	client          kubernetes.Interface

	mu      sync.Mutex // guards running
	running map[*component]*process.Process
}

// start builds what the cache lacks (minutes, the first time) and starts a control
// plane. It returns when the API server is ready, RBAC's default roles exist and nodes
// can create Leases. The test's context bounds the start, not the life.
func start(t testing.TB, opts Options) *ControlPlane {
	t.Helper()
	binaries := Build(t)
	var cp *ControlPlane
	must.OK(t, process.Retry(func() error {
		cp = &ControlPlane{opts: opts, dir: opts.Dir, binaries: maps.Clone(binaries), running: map[*component]*process.Process{}}
		if cp.dir == "" {
			cp.dir = must.Get(os.MkdirTemp("", "nodeprobe-controlplane-"))(t) //nolint:usetesting // a test that failed leaves it
			cp.removeDir = true
		}
		must.OK(t, os.MkdirAll(cp.dir, 0o700))
		cp.prepare(t)
		for _, c := range cp.components() {
			if name := c.target.Name; opts.CopyPrograms {
				cp.binaries[name] = cp.file(name + ".program")
				must.OK(t, os.WriteFile(cp.binaries[name], must.Get(os.ReadFile(binaries[name]))(t), 0o700))
			}
		}
		for _, c := range cp.components() {
			if err := cp.run(t.Context(), c); err != nil {
				return errors.Join(err, cp.Stop())
			}
		}
		return nil
	}))
	return cp
}

// components are what this control plane consists of, in the order in which they
// start.
func (cp *ControlPlane) components() []*component {
	if cp.opts.Controllers {
		return slices.Concat(components, controllers)
	}
	return components
}

// prepare makes everything that the components find when they start.
func (cp *ControlPlane) prepare(t testing.TB) {
	t.Helper()
	ports := must.Get(process.FreePorts(5))(t)
	cp.ports.etcdClient, cp.ports.etcdPeer, cp.ports.apiServer = ports[0], ports[1], ports[2]
	cp.ports.controllerManager, cp.ports.scheduler = ports[3], ports[4]

	cp.ca = newAuthority()
	serving, serviceAccountKey := cp.ca.serving("kube-apiserver"), keyBlock(sure(rsa.GenerateKey(rand.Reader, 2048)))
	for name, content := range map[string][]byte{
		"kube-apiserver.crt": serving.cert, "kube-apiserver.key": serving.key,
		"ca.crt": cp.ca.pem,
		// It signs service account tokens, and the API server verifies them with it.
		"service-account.key": serviceAccountKey,
		"audit-policy.yaml":   []byte(auditPolicy),
		"admission.yaml":      []byte(cp.opts.Admission),
	} {
		must.OK(t, os.WriteFile(cp.file(name), content, 0o600))
	}
	// system:masters is the group that RBAC lets do everything.
	cp.admin = cp.ConfigFor("admin", "system:masters")
	cp.adminKubeconfig = must.Get(cp.WriteKubeconfig("admin", cp.admin))(t)
	cp.client = must.Get(kubernetes.NewForConfig(cp.admin))(t)
}

// run starts one component and waits until it is ready.
func (cp *ControlPlane) run(ctx context.Context, c *component) error {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	p, err := process.Start(process.Spec{
		Path:    cp.binaries[c.target.Name],
		Args:    c.args(cp),
		LogFile: cp.logFile(c),
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := p.WaitReady(ctx, func(ctx context.Context) error { return c.ready(ctx, cp) }); err != nil {
		p.Stop(0)
		return err
	}
	cp.running[c] = p
	return nil
}

// halt kills one component. There is nothing to save that etcd's log on disk
// does not hold already, and a graceful end of the API server takes its time.
func (cp *ControlPlane) halt(c *component) bool {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	p := cp.running[c]
	if p == nil {
		return false
	}
	p.Stop(0)
	delete(cp.running, c)
	return true
}

// StopAPIServer kills the API server, as a crash would; etcd keeps the data.
// Connections are refused until StartAPIServer.
func (cp *ControlPlane) StopAPIServer() error {
	if !cp.halt(apiServer) {
		return errors.New("stop kube-apiserver: it is not running")
	}
	return nil
}

// StartAPIServer starts the API server again, on the same port and with the
// same certificates and data, and returns when it is ready.
func (cp *ControlPlane) StartAPIServer(ctx context.Context) error { return cp.run(ctx, apiServer) }

// Stop ends the processes and removes the directory, unless Options.Dir named
// it. Stopping twice is fine.
func (cp *ControlPlane) Stop() error {
	cp.stopProcesses()
	if !cp.removeDir {
		return nil
	}
	return os.RemoveAll(cp.dir)
}

// stopProcesses is Stop without removing anything: after a failed test the logs
// are wanted.
func (cp *ControlPlane) stopProcesses() {
	for _, c := range slices.Backward(cp.components()) {
		cp.halt(c)
	}
}

// Exited is closed when the named component ("etcd", "kube-apiserver") ends. It
// is nil, and so blocks for ever, if that component is not running.
func (cp *ControlPlane) Exited(name string) <-chan struct{} {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	for c, p := range cp.running {
		if c.target.Name == name {
			return p.Exited()
		}
	}
	return nil
}

// AdminKubeconfig returns the path of a kubeconfig that may do everything.
func (cp *ControlPlane) AdminKubeconfig() string { return cp.adminKubeconfig }

// Config returns a copy of the administrator's client configuration.
func (cp *ControlPlane) Config() *rest.Config { return rest.CopyConfig(cp.admin) }

// Client returns the administrator's client.
func (cp *ControlPlane) Client() kubernetes.Interface { return cp.client }

// Dir returns the directory that holds data, certificates and logs.
func (cp *ControlPlane) Dir() string { return cp.dir }

func (cp *ControlPlane) logFile(c *component) string { return cp.file(c.target.Name + ".log") }

package flood

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// each has every kind of connection come alone. Otherwise they come all at once.
var each = flag.Bool("each", false, "flood with each kind of connection by itself")

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(controlplane.Main(m))
}

const (
	connections = 5000
	// lasting is how long a flood goes on once all have tried to connect.
	lasting = 15 * time.Second
	// leaseSeconds is renewed every quarter of it.
	leaseSeconds = 8
)

// Whoever reaches the port can hold thousands of connections open. nodeprobe stays
// within the memory that the manifest gives it, answers the kubelet's probes and a
// Prometheus meanwhile, and misses no renewal of its Lease.
func TestFlood(t *testing.T) {
	need.Root(t)
	floods := map[string][]Kind{"all": Kinds}
	if *each {
		clear(floods)
		for _, k := range Kinds {
			floods[string(k)] = []Kind{k}
		}
	}
	for _, mode := range []string{"observe", "own"} {
		for scheme, secure := range map[string]bool{"plain": false, "TLS": true} {
			for name, kinds := range floods {
				t.Run(mode+"/"+scheme+"/"+name, func(t *testing.T) { flooded(t, mode, secure, kinds) })
			}
		}
	}
}

func flooded(t *testing.T, mode string, secure bool, kinds []Kind) {
	limit, env := manifest(t)
	cgroup := must.Get(pressure.NoMoreMemory(limit))(t)
	t.Cleanup(func() { must.Note(t, cgroup.Release()) })
	spec := agent.Spec{
		Binary: within(t, cgroup.Cgroup, build.ProductForTest(t)), Dir: t.TempDir(), NodeName: controlplane.ObjectName(t), Env: env,
		Config: agent.Own().With(agent.Config{"mode": mode, "bpf": "auto", "sampleInterval": "10s", "lockedMemoryLimit": "48Mi", "nodeLeaseDurationSeconds": leaseSeconds}),
	}
	cp := (*controlplane.ControlPlane)(nil)
	if mode == "own" {
		cp = controlplane.StartForTest(t)
		spec.Kubeconfig = must.Get(cp.NodeKubeconfig(spec.NodeName))(t)
	}
	if secure {
		spec.TLS = serveTLS(t, &spec)
	}
	a := agent.StartForTest(t, spec)
	stage.Eventually(t, "nodeprobe is ready", func() error { return stage.Code(a, "/readyz", http.StatusOK) })
	locked := func() float64 { return must.Get(a.Metric(t.Context(), "nodeprobe_locked_bytes"))(t) }
	stage.Until(t, "its memory is locked", func() bool { return locked() > 0 })
	before := memory(t, cgroup.Cgroup)

	w := watch(t, a, cp, &spec)
	f := Start(a.Address(), spec.TLS, connections, kinds...)
	tried := make(chan struct{})
	go func() { f.Wait(); close(tried) }()
	select {
	case <-tried:
	case <-a.Exited():
	case <-time.After(time.Minute): // it answers nobody, which the witness has seen
	}
	select {
	case <-time.After(lasting):
	case <-a.Exited():
	}
	tally := f.Stop()
	w.stop()
	after := memory(t, cgroup.Cgroup)
	cpu, cpuErr := footprint.Read(a.PID())
	still := locked()
	t.Logf("connections: %+v; %d probes and %d scrapes were answered, the slowest after %s; longest time without a renewal %s; memory before %s; after %s, %.1f MiB locked; CPU %s, %v",
		tally, w.answered["/livez"]+w.answered["/readyz"], w.answered["/metrics"], w.slowest.Round(time.Millisecond), w.gap, before, after, still/(1<<20), cpu.CPU.Round(time.Millisecond), cpuErr)
	stage.CheckAlive(t, a)
	if still == 0 {
		t.Error("its memory is no longer locked: that is within the power of clients")
	}
	if after.kills > 0 || after.failures > before.failures {
		t.Errorf("its memory ran out: %s", after)
	}
	for _, err := range w.failed {
		t.Error(err)
	}
	if tally.Opened < connections || tally.Spoke == 0 {
		t.Errorf("that was no flood: %+v", tally)
	}
	if mode == "own" && w.gap >= leaseSeconds*time.Second {
		t.Errorf("the lease was not renewed for %s", w.gap)
	}
}

// manifest returns the memory limit and the plain variables of deploy/base.
func manifest(t *testing.T) (limit int64, env []string) {
	t.Helper()
	var ds appsv1.DaemonSet
	must.OK(t, yaml.Unmarshal(must.Get(os.ReadFile(filepath.Join(build.RootForTest(t), "deploy", "base", "daemonset.yaml")))(t), &ds))
	c := ds.Spec.Template.Spec.Containers[0]
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			env = append(env, e.Name+"="+e.Value)
		}
	}
	return c.Resources.Limits.Memory().Value(), env
}

// within returns a program that is binary, run in a cgroup from its first page on.
func within(t *testing.T, cgroup, binary string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nodeprobe")
	script := fmt.Sprintf("#!/bin/sh\necho $$ >%s/cgroup.procs && exec %s \"$@\"\n", cgroup, binary)
	must.OK(t, os.WriteFile(file, []byte(script), 0o700))
	return file
}

// serveTLS has the agent serve HTTPS, and returns how to reach it.
func serveTLS(t *testing.T, spec *agent.Spec) *tls.Config {
	t.Helper()
	server := httptest.NewTLSServer(nil) // has a certificate that is good for 127.0.0.1
	pair := server.TLS.Certificates[0]
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	server.Close()
	key := must.Get(x509.MarshalPKCS8PrivateKey(pair.PrivateKey))(t)
	for file, text := range map[string][]byte{
		"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"web.yml": []byte("tls_server_config: {cert_file: tls.crt, key_file: tls.key}\n"),
	} {
		must.OK(t, os.WriteFile(filepath.Join(spec.Dir, file), text, 0o600))
	}
	spec.Args = append(spec.Args, "--web.config.file="+filepath.Join(spec.Dir, "web.yml"))
	return &tls.Config{RootCAs: roots}
}

// figures are a memory cgroup's.
type figures struct{ now, most, failures, kills int64 }

func (f figures) String() string {
	const mib = 1 << 20
	return fmt.Sprintf("%.1f MiB, at most %.1f, limit met %d times, %d kills", float64(f.now)/mib, float64(f.most)/mib, f.failures, f.kills)
}

// memory reads what a memory cgroup of either version says.
func memory(t *testing.T, cgroup string) figures {
	t.Helper()
	value := func(name, key string) int64 {
		text := string(must.Get(os.ReadFile(filepath.Join(cgroup, name)))(t))
		for line := range strings.Lines(text) {
			if fields := strings.Fields(line); key == "" || fields[0] == key {
				return must.Get(strconv.ParseInt(fields[len(fields)-1], 10, 64))(t)
			}
		}
		t.Fatalf("no %s in %q", key, text)
		return 0
	}
	if _, err := os.Stat(filepath.Join(cgroup, "memory.current")); err == nil {
		return figures{value("memory.current", ""), value("memory.peak", ""), value("memory.events", "max"), value("memory.events", "oom_kill")}
	}
	return figures{
		value("memory.usage_in_bytes", ""), value("memory.max_usage_in_bytes", ""),
		value("memory.failcnt", ""), value("memory.oom_control", "oom_kill"),
	}
}

// witness asks as a kubelet and a Prometheus do, and looks at the Lease.
type witness struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex // guards the rest
	answered map[string]int
	slowest  time.Duration
	failed   []error
	renewed  time.Time
	gap      time.Duration // the longest between two renewals
}

// watch begins to ask.
func watch(t *testing.T, a *agent.Agent, cp *controlplane.ControlPlane, spec *agent.Spec) *witness {
	ctx, cancel := context.WithCancel(t.Context())
	w := &witness{cancel: cancel, answered: map[string]int{}}
	// A kubelet connects anew for each probe, Prometheus keeps its connection. The
	// timeouts are those of the manifest and of Prometheus.
	kubelet := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: spec.TLS, DisableKeepAlives: true}}
	prometheus := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: spec.TLS}}
	w.every(ctx, time.Second, func() { w.get(ctx, kubelet, a, "/livez") })
	w.every(ctx, 2*time.Second, func() { w.get(ctx, prometheus, a, "/metrics") })
	w.every(ctx, 2*time.Second, func() { w.get(ctx, kubelet, a, "/readyz") })
	if cp != nil {
		w.every(ctx, 200*time.Millisecond, func() { w.lease(ctx, cp, spec.NodeName) })
	}
	return w
}

func (w *witness) every(ctx context.Context, period time.Duration, do func()) {
	w.wg.Go(func() {
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				do()
			}
		}
	})
}

func (w *witness) get(ctx context.Context, client *http.Client, a *agent.Agent, path string) {
	begin := time.Now()
	err := ask(ctx, client, a.URL(path), "")
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case ctx.Err() != nil:
	case err != nil:
		w.failed = append(w.failed, err)
	default:
		w.answered[path]++
		w.slowest = max(w.slowest, time.Since(begin))
	}
}

func (w *witness) lease(ctx context.Context, cp *controlplane.ControlPlane, node string) {
	lease, err := cp.Client().CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		w.failed = append(w.failed, err)
		return
	case w.renewed.IsZero():
		w.renewed = lease.Spec.RenewTime.Time
	}
	// A renewal that has not come counts as well.
	w.gap = max(w.gap, time.Since(w.renewed))
	w.renewed = lease.Spec.RenewTime.Time
}

func (w *witness) stop() {
	w.cancel()
	w.wg.Wait()
	for _, path := range []string{"/livez", "/metrics"} {
		if w.answered[path] == 0 {
			w.failed = append(w.failed, errors.New("nobody has answered "+path))
		}
	}
	w.failed = slices.CompactFunc(w.failed, func(a, b error) bool { return a.Error() == b.Error() })
}

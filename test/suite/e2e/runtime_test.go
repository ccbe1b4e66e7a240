package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe/cri/critest"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/containerd"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

const (
	runtimeFails  = "container runtime does not answer"
	runtimeWorks  = "container runtime answers again"
	runtimeCalls  = 4 // that nodeprobe makes
	unknownStatus = "[container runtime status check may not have completed yet, network state unknown]"
)

// badRuntime is a nodeprobe whose container runtime is none, or a bad one, until
// a good one takes its place.
type badRuntime struct {
	name string
	// start puts it to the path of the socket, and returns what takes it away.
	start func(t *testing.T, path string) (stop func())
	// want is what the log says of it.
	want string
	real bool // the good one is containerd

	node    *node
	agent   *agent.Agent
	history *nodewatch.History
	path    string
	stop    func()
	open    int     // files, and
	running float64 // goroutines, at first
	failed  int     // complaints so far
}

// Whatever is where the container runtime should be, the node is not ready for the
// kubelet's reasons and in its words, all else is as ever, and it is ready as soon
// as there is a runtime. The stages are the rows' own, one after the other, so that
// one full filesystem serves all of them.
func TestBadRuntime(t *testing.T) {
	t.Parallel()
	need.Command(t, "containerd", "containerd")
	cp := controlplane.StartForTest(t)
	first, fs := newFullableNode(t, cp, nil) // its node stays unused
	rows := []*badRuntime{
		{name: "nothing", start: nothing, want: "no such file or directory"},
		{name: "regular file", start: regularFile, want: "it is not a socket", real: true},
		{name: "refusing", start: refusing, want: "connection refused"},
		{name: "hanging", start: saying(""), want: "no answer within 10s"},
		{name: "garbage", start: saying(strings.Repeat("garbage ", 1<<13)), want: "http2: "},
		{name: "HTTP/1.1", start: oldHTTP, want: "looked like an HTTP/1.1 header"},
		{name: "another service", start: grpcWithout, want: "Unimplemented: unknown service runtime.v1.RuntimeService (the runtime does not offer CRI v1)"},
		{name: "deadline", start: failing(codes.DeadlineExceeded), want: "DeadlineExceeded: "},
		{name: "a byte", start: byteByByte, want: "Unavailable: "},
	}
	for _, r := range rows {
		r.path = filepath.Join(t.TempDir(), "containerd.sock")
		r.stop = r.start(t, r.path)
		t.Cleanup(func() { r.stop() })
		r.node = newNode(t, cp, first.Spec.Config.With(agent.Config{"containerRuntimeEndpoint": "unix://" + r.path}))
		r.history = r.node.Follow()
		r.agent = r.node.Start()
	}
	each := func(stage string, act func(t *testing.T, r *badRuntime)) {
		t.Helper()
		for _, r := range rows {
			t.Run(stage+", "+r.name, func(t *testing.T) { act(t, r) })
		}
	}
	each("unready", func(t *testing.T, r *badRuntime) { r.checkUnready(t) })

	filled := time.Now()
	fill(t, fs)
	each("full disk", func(t *testing.T, r *badRuntime) {
		r.node.WaitCondition(corev1.NodeDiskPressure, corev1.ConditionTrue)
		// A call of the runtime may take ten.
		if took := stage.WaitLogged(t, r.agent, "condition changed", 0).Time.Sub(filled); took > 8*time.Second {
			t.Errorf("noticed after %s", took)
		}
	})
	empty(t, fs)
	each("empty disk", func(t *testing.T, r *badRuntime) {
		r.node.WaitCondition(corev1.NodeDiskPressure, corev1.ConditionFalse)
		r.node.WaitRenewed(time.Now())
	})
	each("steady", func(t *testing.T, r *badRuntime) { r.checkSteady(t) })
	for _, r := range rows {
		r.stop()
		os.Remove(r.path)
		r.stop = r.good(t, "1.0.0")
	}
	each("ready", func(t *testing.T, r *badRuntime) { r.checkReady(t) })
	for _, r := range rows {
		if !r.real {
			r.failed = len(stage.Logged(t, r.agent, runtimeFails))
			r.stop()
		}
	}
	each("stopped", func(t *testing.T, r *badRuntime) {
		if !r.real {
			stage.WaitLogged(t, r.agent, runtimeFails, r.failed)
		}
	})
	for _, r := range rows {
		if !r.real {
			r.stop = goodRuntime(t, r.path, "2.0.0")
		}
	}
	each("restarted", func(t *testing.T, r *badRuntime) { r.checkRestart(t) })
}

func (r *badRuntime) checkUnready(t *testing.T) {
	r.node.WaitCondition(corev1.NodeReady, corev1.ConditionFalse)
	node := r.node.MustGet()
	ready := nodewatch.Condition(node, corev1.NodeReady)
	if ready.Reason != "KubeletNotReady" || ready.Message != unknownStatus {
		t.Errorf("Ready: %s, %s", ready.Reason, ready.Message)
	}
	for _, c := range stage.BuiltIn[:3] {
		if !nodewatch.Has(c, corev1.ConditionFalse)(node) {
			t.Errorf("%+v", nodewatch.Condition(node, c))
		}
	}
	complaint := stage.WaitComplaint(t, r.agent, runtimeFails, r.want)
	if want := "call Status of unix://" + r.path + ": "; !strings.HasPrefix(complaint.Err, want) {
		t.Errorf("complains %q, want the place: %s", complaint.Err, want)
	}
	// The process is ready all the same: it says what there is to say.
	must.Note(t, stage.Code(r.agent, "/readyz", 200))
	r.open, r.running = r.usage(t)
}

func (r *badRuntime) usage(t *testing.T) (open int, running float64) {
	t.Helper()
	files := must.Get(os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.agent.PID())))(t)
	running = must.Get(r.agent.Metric(t.Context(), "go_goroutines"))(t)
	return len(files), running
}

// checkSteady has the runtime asked again, and looks at what that costs.
func (r *badRuntime) checkSteady(t *testing.T) {
	const series = `nodeprobe_cri_calls_total{call="Status"}`
	stage.Eventually(t, "the runtime is asked again", func() error {
		if calls, err := r.agent.Metric(context.Background(), series); err != nil || calls < 2 {
			return fmt.Errorf("%g calls, %w", calls, err)
		}
		return nil
	})
	open, running := r.usage(t)
	// One connection, with its call; scrapes come and go.
	if open > r.open+3 || running > r.running+4 {
		t.Errorf("from %d to %d files, from %g to %g goroutines", r.open, open, r.running, running)
	}
	stage.CheckOnce(t, r.agent)
	if lines := stage.Logged(t, r.agent, runtimeFails); len(lines) > runtimeCalls {
		t.Errorf("%d complaints: %+v", len(lines), lines)
	}
	r.node.WaitRenewed(time.Now())
}

func (r *badRuntime) good(t *testing.T, version string) (stop func()) {
	t.Helper()
	if !r.real {
		return goodRuntime(t, r.path, version)
	}
	need.Root(t)
	c := must.Get(containerd.Start(t.Context(), containerd.Options{Dir: filepath.Dir(r.path)}))(t)
	return func() {
		must.Note(t, c.Stop())
	}
}

func (r *badRuntime) checkReady(t *testing.T) {
	r.node.WaitCondition(corev1.NodeReady, corev1.ConditionTrue)
	stage.WaitLogged(t, r.agent, runtimeWorks, 0)
	want := "fake://1.0.0"
	if r.real {
		want = "containerd://"
	}
	r.waitVersion(t, want)
	r.node.WaitRenewed(time.Now())
}

func (r *badRuntime) waitVersion(t *testing.T, want string) {
	t.Helper()
	stage.Eventually(t, "the runtime's version is "+want, func() error {
		node, err := r.node.Get()
		if err == nil && !strings.HasPrefix(node.Status.NodeInfo.ContainerRuntimeVersion, want) {
			err = fmt.Errorf("it is %q", node.Status.NodeInfo.ContainerRuntimeVersion)
		}
		return err
	})
}

// checkRestart looks at a node whose runtime came back as another version, sooner
// than the node becomes unready.
func (r *badRuntime) checkRestart(t *testing.T) {
	if !r.real {
		r.waitVersion(t, "fake://2.0.0")
	}
	ready := 0
	for _, s := range r.history.All() {
		if c := nodewatch.Condition(s.Node, corev1.NodeReady); ready > 0 && c.Status != corev1.ConditionTrue {
			t.Errorf("flipped: %+v", c)
		} else if c.Status == corev1.ConditionTrue {
			ready++
		}
		for _, c := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodePIDPressure} {
			if nodewatch.Has(c, corev1.ConditionTrue)(s.Node) {
				t.Errorf("flipped: %s", c)
			}
		}
	}
	if ready == 0 {
		t.Error("never ready")
	}
}

// What stands where a container runtime should; each returns what takes it away.

func nothing(*testing.T, string) (stop func()) { return func() {} }

func regularFile(t *testing.T, path string) (stop func()) {
	must.OK(t, os.WriteFile(path, nil, 0o600))
	return func() {}
}

func listenAt(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l := must.Get(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
	return l
}

// refusing is what a runtime leaves behind that was killed.
func refusing(t *testing.T, path string) (stop func()) {
	l := listenAt(t, path)
	l.SetUnlinkOnClose(false)
	l.Close()
	return func() {}
}

// serving takes connections, and ends those that last when it is stopped.
func serving(t *testing.T, path string, serve func(net.Conn)) (stop func()) {
	t.Helper()
	l := listenAt(t, path)
	var running sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			running.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	return sync.OnceFunc(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
}

// saying says something, and then nothing more.
func saying(text string) func(*testing.T, string) (stop func()) {
	return func(t *testing.T, path string) (stop func()) {
		return serving(t, path, func(c net.Conn) {
			// Either fails when the other end has had enough.
			_, _ = io.WriteString(c, text)
			_, _ = io.Copy(io.Discard, c)
		})
	}
}

func byteByByte(t *testing.T, path string) (stop func()) {
	return serving(t, path, func(c net.Conn) { _, _ = c.Write([]byte{0}) })
}

func oldHTTP(t *testing.T, path string) (stop func()) {
	server := &http.Server{Handler: http.NotFoundHandler()}
	served := make(chan struct{})
	l := listenAt(t, path)
	go func() {
		defer close(served)
		_ = server.Serve(l) // until it is closed
	}()
	return sync.OnceFunc(func() { server.Close(); <-served })
}

// grpcWithout serves gRPC, but no runtime.
func grpcWithout(t *testing.T, path string) (stop func()) {
	server := grpc.NewServer()
	served := make(chan struct{})
	l := listenAt(t, path)
	go func() {
		defer close(served)
		_ = server.Serve(l) // until it is stopped
	}()
	return sync.OnceFunc(func() { server.Stop(); <-served })
}

// failing answers every call with an error.
func failing(code codes.Code) func(*testing.T, string) (stop func()) {
	return func(t *testing.T, path string) (stop func()) {
		return startRuntime(t, path, critest.Replies{Before: func(context.Context, string) error {
			return status.Error(code, "for example")
		}})
	}
}

func goodRuntime(t *testing.T, path, version string) (stop func()) {
	t.Helper()
	replies := critest.Healthy()
	replies.Version.RuntimeVersion = version
	return startRuntime(t, path, replies)
}

func startRuntime(t *testing.T, path string, replies critest.Replies) (stop func()) {
	t.Helper()
	return must.Get(critest.Start(path, replies))(t).Stop
}

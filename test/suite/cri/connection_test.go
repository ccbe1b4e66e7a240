package cri

import (
	"net"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeprobe/nodeprobe/probe/cri"
)

func healthy() answers {
	return answers{
		version: &runtimeapi.VersionResponse{RuntimeName: "fake", RuntimeVersion: "1"},
		status: &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: "RuntimeReady", Status: true}, {Type: "NetworkReady", Status: true},
		}}},
		images: &runtimeapi.ListImagesResponse{}, filesystems: &runtimeapi.ImageFsInfoResponse{},
	}
}

func mustRead(t testing.TB, s *cri.Sampler) *cri.Snapshot {
	t.Helper()
	snap := s.Sample(t.Context())
	for _, read := range snap.Reads {
		if read.Err != nil {
			t.Error(read.Err)
		}
	}
	return snap
}

// Between two samples nothing is open that a runtime would have to wait for
// before it stops.
func TestGracefulStop(t *testing.T) {
	path := socket(t)
	runtime := &server{}
	runtime.set(healthy())
	running := serve(t, path, runtime)
	s := newSampler(t, path)
	mustRead(t, s)
	running.GracefulStop() // would wait for a client that does not hang up
	if s.Sample(t.Context()).Reads[cri.CallStatus].Err == nil {
		t.Error("a stopped runtime answers")
	}
	next := &server{}
	a := healthy()
	a.version.RuntimeVersion = "2"
	next.set(a)
	serve(t, path, next)
	if got := mustRead(t, s).Version.RuntimeVersion; got != "2" {
		t.Errorf("version %q", got)
	}
}

// The runtime understands where pods' addresses shall come from.
func TestPodCIDR(t *testing.T) {
	path := socket(t)
	runtime := &server{}
	runtime.set(healthy())
	serve(t, path, runtime)
	s := newSampler(t, path)
	for _, cidr := range []string{"10.244.3.0/24", "10.244.3.0/24,fd00:10:244:3::/64"} {
		s.Configure(cidr)
		mustRead(t, s)
		runtime.mu.Lock()
		got := runtime.podCIDR
		runtime.mu.Unlock()
		if got != cidr {
			t.Errorf("it was told %q, not %q", got, cidr)
		}
	}
}

// A runtime that offers other services only, as containerd does whose CRI is
// turned off.
func TestOtherServices(t *testing.T) {
	path := socket(t)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	go g.Serve(l)
	t.Cleanup(g.Stop)
	err = newSampler(t, path).Sample(t.Context()).Reads[cri.CallStatus].Err
	want := "call Status of unix://" + path + ": Unimplemented: unknown service runtime.v1.RuntimeService (the runtime does not offer CRI v1)"
	if err == nil || err.Error() != want {
		t.Errorf("%v; want %s", err, want)
	}
}

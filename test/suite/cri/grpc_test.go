// Package cri holds the product's client of the container runtime together with
// the code whose place it takes, k8s.io/cri-api and grpc, and with a runtime.
package cri

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeprobe/nodeprobe/probe/cri"
)

// server is a runtime made of the generated code, which answers what it is told
// to.
type server struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	mu      sync.Mutex
	answers answers
	podCIDR string // that it was told
}

// answers are what a runtime says; err, where it is set, instead of everything.
type answers struct {
	version     *runtimeapi.VersionResponse
	status      *runtimeapi.StatusResponse
	images      *runtimeapi.ListImagesResponse
	filesystems *runtimeapi.ImageFsInfoResponse
	err         error
}

func (s *server) set(a answers) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = a
}

func (s *server) get() answers {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answers
}

func (s *server) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	a := s.get()
	return a.version, a.err
}

func (s *server) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	a := s.get()
	return a.status, a.err
}

func (s *server) UpdateRuntimeConfig(_ context.Context, r *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.podCIDR = r.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()
	return &runtimeapi.UpdateRuntimeConfigResponse{}, s.answers.err
}

func (s *server) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	a := s.get()
	return a.images, a.err
}

func (s *server) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	a := s.get()
	return a.filesystems, a.err
}

// serve serves the socket until the test ends, or the server that it returns is stopped.
func serve(t testing.TB, path string, s *server, options ...grpc.ServerOption) *grpc.Server {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(options...)
	runtimeapi.RegisterRuntimeServiceServer(g, s)
	runtimeapi.RegisterImageServiceServer(g, s)
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := g.Serve(l); err != nil {
			t.Errorf("serve: %v", err)
		}
	}()
	t.Cleanup(func() { g.Stop(); <-served })
	return g
}

func socket(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "sock")
}

// newSampler asks for everything in each Sample, but for the version.
func newSampler(t testing.TB, path string) *cri.Sampler {
	t.Helper()
	s, err := cri.New(cri.Config{Endpoint: "unix://" + path, ImageInterval: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

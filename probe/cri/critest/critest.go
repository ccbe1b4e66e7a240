// Package critest provides a container runtime for tests: a gRPC server with the
// calls of the CRI that package cri makes.
package critest

import (
	"context"
	"fmt"
	"net"
	"path"
	"slices"
	"sync"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Replies are what a Runtime replies to each call; nil is an empty message.
type Replies struct {
	Status      *runtimeapi.StatusResponse
	Version     *runtimeapi.VersionResponse
	Filesystems *runtimeapi.ImageFsInfoResponse
	Images      *runtimeapi.ListImagesResponse
	// Before is called with the name of a call ("Status") before the reply; the
	// call fails with the error that it returns. It may be nil.
	Before func(ctx context.Context, call string) error
}

// Healthy returns the replies of a runtime that is ready, has a network, and holds
// nothing. The caller may change them.
func Healthy() Replies {
	return Replies{
		Status: &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: true},
		}}},
		Version:     &runtimeapi.VersionResponse{RuntimeName: "fake", RuntimeVersion: "1.0.0", RuntimeApiVersion: "v1"},
		Filesystems: &runtimeapi.ImageFsInfoResponse{},
		Images:      &runtimeapi.ListImagesResponse{},
	}
}

// Runtime is a container runtime. It is safe for concurrent use.
type Runtime struct {
	server *grpc.Server
	served chan struct{}

	mu       sync.Mutex
	replies  Replies
	accepted int
	calls    map[string]int
	podCIDRs []string
}

// Start serves a socket, which must not exist yet. The caller stops the Runtime.
func Start(socket string, replies Replies) (*Runtime, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("start runtime: %w", err)
	}
	return Serve(l, replies), nil
}

// Serve serves a listener and closes it in the end. The caller stops the Runtime.
func Serve(l net.Listener, replies Replies) *Runtime {
	r := &Runtime{served: make(chan struct{}), replies: replies, calls: map[string]int{}}
	r.server = grpc.NewServer(grpc.UnaryInterceptor(r.intercept))
	runtimeapi.RegisterRuntimeServiceServer(r.server, &runtimeService{runtime: r})
	runtimeapi.RegisterImageServiceServer(r.server, &imageService{runtime: r})
	go func() {
		defer close(r.served)
		_ = r.server.Serve(&listener{l, r}) // until it is stopped
	}()
	return r
}

// Stop ends all calls and connections, and removes the socket. Stopping twice is
// fine.
func (r *Runtime) Stop() {
	r.server.Stop()
	<-r.served
}

// GracefulStop asks clients to disconnect and waits until they have.
func (r *Runtime) GracefulStop() { r.server.GracefulStop() }

// Set changes the replies.
func (r *Runtime) Set(replies Replies) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.replies = replies
}

// Accepted returns how many connections there were.
func (r *Runtime) Accepted() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.accepted
}

// Calls returns how many calls of a name there were.
func (r *Runtime) Calls(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[name]
}

// PodCIDRs returns what each UpdateRuntimeConfig carried.
func (r *Runtime) PodCIDRs() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.podCIDRs)
}

func (r *Runtime) get() Replies {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.replies
}

// intercept counts a call and lets Before fail it.
func (r *Runtime) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	name := path.Base(info.FullMethod)
	r.mu.Lock()
	r.calls[name]++
	before := r.replies.Before
	r.mu.Unlock()
	if before != nil {
		if err := before(ctx, name); err != nil {
			return nil, err
		}
	}
	return handle(ctx, request)
}

// listener counts connections.
type listener struct {
	net.Listener
	runtime *Runtime
}

func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.runtime.mu.Lock()
		l.runtime.accepted++
		l.runtime.mu.Unlock()
	}
	return conn, err
}

type runtimeService struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtime *Runtime
}

func (s *runtimeService) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return s.runtime.get().Status, nil
}

func (s *runtimeService) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return s.runtime.get().Version, nil
}

func (s *runtimeService) UpdateRuntimeConfig(_ context.Context, request *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	s.runtime.mu.Lock()
	defer s.runtime.mu.Unlock()
	s.runtime.podCIDRs = append(s.runtime.podCIDRs, request.GetRuntimeConfig().GetNetworkConfig().GetPodCidr())
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

type imageService struct {
	runtimeapi.UnimplementedImageServiceServer
	runtime *Runtime
}

func (s *imageService) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return s.runtime.get().Filesystems, nil
}

func (s *imageService) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return s.runtime.get().Images, nil
}

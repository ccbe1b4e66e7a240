package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Configure sets the addresses of the node's pods, which Run passes to the
// runtime: one CIDR, or one of each family separated by a comma. Run passes them
// again after the runtime was away, and every 30 s while it refuses them. ""
// leaves the runtime with what it got last. Configure never blocks, and may be
// called as often as is convenient.
func (s *Sampler) Configure(podCIDR string) {
	s.mu.Lock()
	changed := podCIDR != s.podCIDR
	s.podCIDR = podCIDR
	s.mu.Unlock()
	if !changed {
		return
	}
	select {
	case s.wakeup <- struct{}{}:
	default:
	}
}

// wantedPodCIDR returns what Configure last got.
func (s *Sampler) wantedPodCIDR() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.podCIDR
}

// unconfigured reports whether the runtime lacks what Configure got.
func (s *Sampler) unconfigured() bool {
	want := s.wantedPodCIDR()
	return want != "" && want != s.current.PodCIDR
}

// configure makes the call UpdateRuntimeConfig.
func (s *Sampler) configure(ctx context.Context) error {
	podCIDR := s.wantedPodCIDR()
	request := &runtimeapi.UpdateRuntimeConfigRequest{
		RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: podCIDR}},
	}
	err := s.call(ctx, CallUpdateRuntimeConfig, request, &runtimeapi.UpdateRuntimeConfigResponse{})
	if err == nil {
		s.current.PodCIDR = podCIDR
	}
	return err
}

package cri

import (
	"context"

	"google.golang.org/protobuf/encoding/protowire"
)

// Configure has the runtime told, by Run, which addresses the node's pods have:
// one CIDR, or one of each family separated by a comma. It is told again after it
// was away, and every 30 s while it refuses. "" leaves it with what it was told
// last. Configure never blocks, and may be called as often as is convenient.
func (s *Sampler) Configure(podCIDR string) {
	s.mu.Lock()
	news := podCIDR != s.podCIDR
	s.podCIDR = podCIDR
	s.mu.Unlock()
	if !news {
		return
	}
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// wanted returns what the runtime shall be told of pods' addresses.
func (s *Sampler) wanted() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.podCIDR
}

// untold says whether there is something that it has not been told.
func (s *Sampler) untold() bool {
	want := s.wanted()
	return want != "" && want != s.current.PodCIDR
}

// configure tells it.
func (s *Sampler) configure(ctx context.Context, podCIDR string) error {
	_, err := s.call(ctx, CallUpdateRuntimeConfig, updateRuntimeConfig(podCIDR))
	if err == nil {
		s.current.PodCIDR = podCIDR
	}
	return err
}

// updateRuntimeConfig encodes an UpdateRuntimeConfigRequest.
func updateRuntimeConfig(podCIDR string) []byte {
	message := []byte(podCIDR)
	for range 3 { // each stands in field 1: runtime_config, network_config, pod_cidr
		message = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), message)
	}
	return message
}

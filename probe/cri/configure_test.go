package cri

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nodeprobe/nodeprobe/probe/cri/critest"
)

// When the runtime is told of pods' addresses: at once, again after it was away,
// and now and then while it refuses.
func TestConfigure(t *testing.T) {
	after := func(d time.Duration, do func()) { time.AfterFunc(d, do) }
	for name, test := range map[string]struct {
		script func(*Sampler, *script)
		want   string
	}{
		"nothing to tell": {func(s *Sampler, _ *script) { s.Configure("") }, ``},
		"once": {
			func(s *Sampler, _ *script) {
				s.Configure("10.0.0.0/24")
				after(12*time.Second, func() { s.Configure("10.0.0.0/24") })
			}, `0s 10.0.0.0/24`,
		},
		"given later, and another": {
			func(s *Sampler, _ *script) {
				s.Configure("")
				after(time.Second, func() { s.Configure("10.0.0.0/24,fd00::/64") })
				after(2*time.Second, func() { s.Configure("10.0.1.0/24") })
				after(3*time.Second, func() { s.Configure("") }) // nobody takes it back
			}, `1s 10.0.0.0/24,fd00::/64; 2s 10.0.1.0/24`,
		},
		"refused": {
			func(s *Sampler, x *script) {
				s.Configure("10.0.0.0/24")
				x.set(CallUpdateRuntimeConfig, fails(replyError(codes.Unknown, "")))
				after(35*time.Second, func() { x.set(CallUpdateRuntimeConfig, says(nil)) })
			}, `0s 10.0.0.0/24; 30s 10.0.0.0/24; 1m0s 10.0.0.0/24`,
		},
		"restarted": {
			func(s *Sampler, x *script) {
				s.Configure("10.0.0.0/24")
				after(15*time.Second, func() { x.set(CallStatus, fails(errLost)) })
				after(25050*time.Millisecond, func() { x.set(CallStatus, says(fullReplies().Status)) })
			}, `0s 10.0.0.0/24; 25.1s 10.0.0.0/24`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, x := newScript(t, Config{})
				test.script(s, x)
				ctx, cancel := context.WithTimeout(t.Context(), 70*time.Second)
				defer cancel()
				if err := s.Run(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Run returns %v", err)
				}
				if got := strings.Join(x.podCIDRs, "; "); got != test.want {
					t.Errorf("passed %s, want %s", got, test.want)
				}
			})
		})
	}
}

// The runtime and its images may have sockets of their own; one that is away does
// not keep the other from answering.
func TestImageEndpoint(t *testing.T) {
	runtimePath, imagePath := socket(t), socket(t)
	runtime := startRuntime(t, runtimePath, critest.Healthy())
	s := newSampler(t, Config{Endpoint: runtimePath, ImageEndpoint: imagePath})
	s.Configure("10.0.0.0/24")

	snap := s.Sample(t.Context())
	for c, read := range snap.Reads {
		if c := Call(c); c.ofImages() != (read.Err != nil) {
			t.Errorf("without an image service: %s: %v", c, read.Err)
		} else if read.Err != nil && !strings.Contains(read.Err.Error(), imagePath) {
			t.Errorf("%s: %v does not name the socket", c, read.Err)
		}
	}
	images := startRuntime(t, imagePath, critest.Healthy())
	snap = s.Sample(t.Context())
	for c, read := range snap.Reads {
		if read.Err != nil {
			t.Errorf("%s: %v", Call(c), read.Err)
		}
	}
	if images.Calls("Status") != 0 || images.Calls("ListImages") != 1 || images.Calls("ImageFsInfo") != 1 {
		t.Errorf("image service: %d Status, %d ListImages, %d ImageFsInfo", images.Calls("Status"), images.Calls("ListImages"), images.Calls("ImageFsInfo"))
	}
	if runtime.Calls("Status") != 2 || runtime.Calls("ListImages") != 0 || !slices.Equal(runtime.PodCIDRs(), []string{"10.0.0.0/24"}) {
		t.Errorf("runtime: %d Status, %d ListImages, addresses %v", runtime.Calls("Status"), runtime.Calls("ListImages"), runtime.PodCIDRs())
	}
}

// The runtime gets the addresses as they are, and an answer with an error is no
// success.
func TestPodCIDR(t *testing.T) {
	path := socket(t)
	runtime := startRuntime(t, path, critest.Healthy())
	s := newSampler(t, Config{Endpoint: path})
	want := []string{"10.244.3.0/24", "10.244.3.0/24,fd00:10:244:3::/64"}
	for _, cidr := range want {
		s.Configure(cidr)
		if snap := s.Sample(t.Context()); snap.PodCIDR != cidr || snap.Reads[CallUpdateRuntimeConfig].Err != nil {
			t.Errorf("PodCIDR %q, error %v; want %q", snap.PodCIDR, snap.Reads[CallUpdateRuntimeConfig].Err, cidr)
		}
	}
	if got := runtime.PodCIDRs(); !slices.Equal(got, want) {
		t.Errorf("the runtime got %q, want %q", got, want)
	}
}

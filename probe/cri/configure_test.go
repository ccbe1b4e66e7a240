package cri

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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
				x.set(CallUpdateRuntimeConfig, fails(&statusError{code: 2}))
				after(35*time.Second, func() { x.set(CallUpdateRuntimeConfig, says(nil)) })
			}, `0s 10.0.0.0/24; 30s 10.0.0.0/24; 1m0s 10.0.0.0/24`,
		},
		"restarted": {
			func(s *Sampler, x *script) {
				s.Configure("10.0.0.0/24")
				after(15*time.Second, func() { x.set(CallStatus, fails(errLost)) })
				after(25050*time.Millisecond, func() { x.set(CallStatus, says(statusMessage)) })
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
				if got := strings.Join(x.told, "; "); got != test.want {
					t.Errorf("told %s, want %s", got, test.want)
				}
			})
		})
	}
}

// The runtime and its images may have sockets of their own; one that is away does
// not keep the other from answering.
func TestImageEndpoint(t *testing.T) {
	runtimePath, imagePath := socket(t), socket(t)
	runtime := startRuntime(t, runtimePath, healthy())
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
	images := startRuntime(t, imagePath, healthy())
	snap = s.Sample(t.Context())
	if len(snap.Images) != len(wantImages) || snap.Reads[CallListImages].Err != nil {
		t.Errorf("images: %v, %v", snap.Images, snap.Reads[CallListImages].Err)
	}
	_, calls := images.counts()
	if calls["Status"] != 0 || calls["ListImages"] != 1 || calls["ImageFsInfo"] != 1 {
		t.Errorf("image service was asked %v", calls)
	}
	_, calls = runtime.counts()
	if calls["Status"] != 2 || calls["ListImages"] != 0 || !slices.Equal(runtime.podCIDRs, []string{"10.0.0.0/24"}) {
		t.Errorf("runtime was asked %v, told %v", calls, runtime.podCIDRs)
	}
}

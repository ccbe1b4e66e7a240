package status

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// Passes do not wait for the name servers but once a minute, also while those
// fail.
func TestRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		failure := errors.New("no name server answers")
		lookup := rarely(func(context.Context, string) ([]net.IP, error) {
			if asked++; asked == 2 {
				return nil, failure
			}
			return []net.IP{net.IPv4(192, 0, 2, byte(asked))}, nil
		})
		for _, step := range []struct {
			wait  time.Duration
			asked int
			ip    string
			err   error
		}{
			{0, 1, "192.0.2.1", nil},
			{time.Minute - 1, 1, "192.0.2.1", nil},
			{1, 2, "", failure},
			{time.Second, 2, "", failure},
			{time.Minute, 3, "192.0.2.3", nil},
		} {
			time.Sleep(step.wait)
			ips, err := lookup(t.Context(), nodeName)
			diff(t, "asked", step.asked, asked)
			if !errors.Is(err, step.err) {
				t.Errorf("error %v, want %v", err, step.err)
			}
			ip := ""
			if len(ips) > 0 {
				ip = ips[0].String()
			}
			diff(t, "IP", step.ip, ip)
		}
	})
}

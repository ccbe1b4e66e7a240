package status

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Passes look for the node's address once a minute, and while there is none,
// every ten seconds.
func TestAddressIsChosenRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		cfg := Config{Addresses: Addresses{
			NodeName: nodeName, Hostname: nodeName,
			Lookup: func(context.Context, string) ([]net.IP, error) { return nil, nil },
			DefaultRoute: func(net.IP) (net.IP, error) {
				if asked++; asked == 2 {
					return nil, errors.New("no default route")
				}
				return net.IPv4(192, 0, 2, byte(asked)), nil
			},
		}}.withDefaults()
		for _, step := range []struct {
			wait  time.Duration
			asked int
			ip    string // "" is an error
		}{
			{0, 1, "192.0.2.1"},
			{time.Minute - 1, 1, "192.0.2.1"},
			{1, 2, ""},
			{10*time.Second - 1, 2, ""},
			{1, 3, "192.0.2.3"},
		} {
			time.Sleep(step.wait)
			var node v1.Node
			err := nodeAddress(cfg.Addresses)(t.Context(), &node)
			diff(t, "asked", step.asked, asked)
			if (err != nil) != (step.ip == "") {
				t.Errorf("error %v, want address %q", err, step.ip)
			} else if err == nil {
				diff(t, "address", step.ip, node.Status.Addresses[0].Address)
			}
		}
	})
}

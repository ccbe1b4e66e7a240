package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// The cases are those of the kubelet's TestNodeAddress and
// TestNodeAddress_NoCloudProvider, with the rest of its rules at the end.
func TestNodeAddress(t *testing.T) {
	const v4, other4, v6 = "10.1.1.1", "10.1.1.2", "2600:1f14:1d4:d101::ba3d"
	ccm := []v1.NodeAddress{{Type: v1.NodeExternalIP, Address: "198.51.100.7"}}
	provided := func(ip string) map[string]string { return map[string]string{providedNodeIP: ip} }
	for _, test := range []struct {
		name        string
		nodeIP      string
		external    bool
		route       string // what the default route's interface has
		had         []v1.NodeAddress
		annotations map[string]string

		want            []v1.NodeAddress
		wantAnnotations map[string]string
		wantErr         string
	}{
		{name: "cloud, node IP", nodeIP: v4, external: true, want: apitest.Addresses(v4, apitest.NodeName), wantAnnotations: provided(v4)},
		{name: "0.0.0.0", nodeIP: "0.0.0.0", route: other4, want: apitest.Addresses(other4, apitest.NodeName)},
		{name: "::", nodeIP: "::", route: v6, want: apitest.Addresses(v6, apitest.NodeName)},
		{name: "cloud, 0.0.0.0", nodeIP: "0.0.0.0", external: true, route: other4, want: apitest.Addresses(other4, apitest.NodeName)},
		{name: "cloud, ::", nodeIP: "::", external: true, route: v6, want: apitest.Addresses(v6, apitest.NodeName)},
		{name: "no node IP, IPv4 route", route: other4, want: apitest.Addresses(other4, apitest.NodeName)},
		{name: "no node IP, IPv6 route", route: v6, want: apitest.Addresses(v6, apitest.NodeName)},
		{name: "cloud, no node IP, IPv4 route", external: true, route: other4, want: apitest.Addresses(apitest.NodeName)},
		{name: "cloud, no node IP, IPv6 route", external: true, route: v6, want: apitest.Addresses(apitest.NodeName)},
		{
			name: "cloud, node IP annotation beside others", nodeIP: v4, external: true, annotations: map[string]string{"a": "b"},
			want: apitest.Addresses(v4, apitest.NodeName), wantAnnotations: map[string]string{"a": "b", providedNodeIP: v4},
		},
		{name: "cloud, addresses are set", nodeIP: v4, external: true, had: ccm, want: ccm, wantAnnotations: provided(v4)},
		{name: "no cloud, no annotation", nodeIP: v4, want: apitest.Addresses(v4, apitest.NodeName)},
		{name: "no cloud, stale annotation", nodeIP: v4, annotations: provided(v4), want: apitest.Addresses(v4, apitest.NodeName), wantAnnotations: map[string]string{}},
		{name: "cloud, wrong annotation", nodeIP: v4, external: true, annotations: provided(other4), want: apitest.Addresses(v4, apitest.NodeName), wantAnnotations: provided(v4)},
		{name: "cloud, dual stack", nodeIP: v6 + "," + v4, external: true, want: apitest.Addresses(v6, v4, apitest.NodeName), wantAnnotations: provided(v6 + "," + v4)},
		{
			name: "cloud, upgrade to dual stack", nodeIP: v4 + "," + v6, external: true, annotations: provided(v4),
			want: apitest.Addresses(v4, v6, apitest.NodeName), wantAnnotations: provided(v4 + "," + v6),
		},
		{
			name: "cloud, downgrade from dual stack", nodeIP: v4, external: true, annotations: provided(v4 + "," + v6),
			want: apitest.Addresses(v4, apitest.NodeName), wantAnnotations: provided(v4),
		},

		{name: "single IP", nodeIP: v4, want: apitest.Addresses(v4, apitest.NodeName)},
		{name: "loopback", nodeIP: "127.0.0.1", wantErr: "failed to validate nodeIP: nodeIP can't be loopback address"},
		{name: "dual stack", nodeIP: v4 + "," + v6, want: apitest.Addresses(v4, v6, apitest.NodeName)},
		{name: "secondary is loopback", nodeIP: v4 + ",::1", wantErr: "failed to validate secondaryNodeIP: nodeIP can't be loopback address"},

		{name: "cloud, 0.0.0.0, addresses are set", nodeIP: "0.0.0.0", external: true, route: other4, had: ccm, want: ccm},
		{name: "cloud, 0.0.0.0, stale annotation", nodeIP: "0.0.0.0", external: true, route: other4, annotations: provided(v4), want: apitest.Addresses(other4, apitest.NodeName), wantAnnotations: map[string]string{}},
		{name: "addresses are replaced", nodeIP: v4, had: apitest.Addresses(other4, apitest.NodeName), want: apitest.Addresses(v4, apitest.NodeName)},
		{
			name: "an error changes nothing", nodeIP: "224.0.0.1", external: true, had: apitest.Addresses(other4, apitest.NodeName), annotations: provided(v4),
			want: apitest.Addresses(other4, apitest.NodeName), wantAnnotations: provided(v4),
			wantErr: "failed to validate nodeIP: nodeIP can't be a multicast address",
		},
		{
			name: "no default route", had: apitest.Addresses(other4, apitest.NodeName), want: apitest.Addresses(other4, apitest.NodeName),
			wantErr: "can't get ip address of node node-1. error: no default routes found",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			ips, err := ParseNodeIPs(test.nodeIP)
			if err != nil {
				t.Fatal(err)
			}
			cfg := Addresses{
				NodeName: apitest.NodeName, Hostname: apitest.NodeName, NodeIPs: ips, ExternalCloudProvider: test.external,
				Interfaces: func() ([]net.Addr, error) { return ownAddresses(v4, other4, v6), nil },
				Lookup:     func(context.Context, string) ([]net.IP, error) { return nil, notFound },
				DefaultRoute: func(net.IP) (net.IP, error) {
					if test.route == "" {
						return nil, errors.New("no default routes found")
					}
					return net.ParseIP(test.route), nil
				},
			}
			node := &v1.Node{}
			node.Status.Addresses, node.Annotations = test.had, test.annotations
			err = nodeAddress(cfg)(t.Context(), node)
			apitest.Diff(t, "error", test.wantErr, apitest.ErrorText(err))
			apitest.Diff(t, "addresses", test.want, node.Status.Addresses)
			apitest.Diff(t, "annotations", test.wantAnnotations, node.Annotations)
		})
	}
}

var (
	notFound    = &net.DNSError{Err: "no such host", Name: apitest.NodeName, IsNotFound: true}
	unreachable = &net.DNSError{Err: "server misbehaving", Name: apitest.NodeName, IsTemporary: true}
)

// A node without a node IP finds its address by its name, else by its default
// route. V28 is among them.
func TestNodeAddressByName(t *testing.T) {
	const v4, other4, v6, foreign = "10.1.1.1", "10.1.1.2", "2001:db8::1", "203.0.113.9"
	for _, test := range []struct {
		name      string
		hostname  string
		nodeIP    string
		found     []string
		err       error
		had       []v1.NodeAddress
		want      string
		preferred string // what the default route was asked for
	}{
		{name: "hostname is an IP of anybody", hostname: foreign, found: []string{v4}, want: foreign},
		{name: "hostname is an IP with leading zeros", hostname: "010.001.001.001", want: v4},
		{name: "first of the family", found: []string{v6, v4, other4}, want: v4},
		{name: "none of the family", found: []string{v6}, want: v6},
		{name: "IPv6 is preferred", nodeIP: "::", found: []string{v4, v6}, want: v6},
		{name: "IPv6 is preferred, none found", nodeIP: "::", found: []string{other4, v4}, want: other4},
		{name: "IPv4 is asked for", nodeIP: "0.0.0.0", found: []string{v6, v4}, want: v4},
		{name: "not ours", found: []string{foreign, "127.0.1.1", v4}, want: v4},
		{name: "none is ours", found: []string{foreign, "127.0.1.1"}, want: "10.9.9.9", preferred: "0.0.0.0"},
		{name: "not found", err: notFound, want: "10.9.9.9", preferred: "0.0.0.0"},
		{name: "not found, IPv6", nodeIP: "::", err: notFound, want: "10.9.9.9", preferred: "::"},
		{name: "not found, whatever there was", err: notFound, had: apitest.Addresses(v4, apitest.NodeName), want: "10.9.9.9", preferred: "0.0.0.0"},
		{name: "no name server", err: unreachable, had: apitest.Addresses(v4, apitest.NodeName), want: v4},
		{name: "no name server, and none before", err: unreachable, want: "10.9.9.9", preferred: "0.0.0.0"},
		{name: "no name server, and another machine's before", err: unreachable, had: apitest.Addresses(foreign, apitest.NodeName), want: "10.9.9.9", preferred: "0.0.0.0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			ips, err := ParseNodeIPs(test.nodeIP)
			if err != nil {
				t.Fatal(err)
			}
			var preferred string
			cfg := Addresses{
				NodeName: apitest.NodeName, Hostname: apitest.NodeName, NodeIPs: ips,
				Interfaces: func() ([]net.Addr, error) { return ownAddresses(v4, other4, v6), nil },
				Lookup: func(_ context.Context, name string) (found []net.IP, _ error) {
					apitest.Diff(t, "name looked up", apitest.NodeName, name)
					for _, ip := range test.found {
						found = append(found, net.ParseIP(ip))
					}
					return found, test.err
				},
				DefaultRoute: func(ip net.IP) (net.IP, error) {
					preferred = ip.String()
					return net.ParseIP("10.9.9.9"), nil
				},
			}
			if test.hostname != "" {
				cfg.Hostname = test.hostname
			}
			node := &v1.Node{}
			node.Status.Addresses = test.had
			set(t, node, nodeAddress(cfg))
			want := []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: test.want}, {Type: v1.NodeHostName, Address: cfg.Hostname}}
			apitest.Diff(t, "addresses", want, node.Status.Addresses)
			apitest.Diff(t, "default route", test.preferred, preferred)
			if node.Annotations != nil {
				t.Errorf("annotations %v, want none", node.Annotations)
			}
		})
	}
}

func TestNodeAddressWithoutAny(t *testing.T) {
	cfg := testAddresses()
	cfg.NodeIPs = nil
	cfg.Lookup = func(context.Context, string) ([]net.IP, error) { return nil, notFound }
	cfg.DefaultRoute = func(net.IP) (net.IP, error) { return nil, nil }
	err := nodeAddress(cfg)(t.Context(), &v1.Node{})
	apitest.Diff(t, "error", "can't get ip address of node node-1. error: no address found", apitest.ErrorText(err))
}

// A name server that does not answer must not hold up the rest for long.
func TestNodeAddressLookupIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testAddresses()
		cfg.NodeIPs = nil
		cfg.Lookup = func(ctx context.Context, _ string) ([]net.IP, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		cfg.DefaultRoute = func(net.IP) (net.IP, error) { return net.ParseIP("10.0.0.7"), nil }
		node, start := &v1.Node{}, time.Now()
		set(t, node, nodeAddress(cfg))
		apitest.Diff(t, "addresses", apitest.Addresses("10.0.0.7", apitest.NodeName), node.Status.Addresses)
		apitest.Diff(t, "time", lookupTimeout, time.Since(start))
	})
}

// The texts are the kubelet's, and so is the order of the checks.
func TestValidateNodeIP(t *testing.T) {
	cfg := Addresses{Interfaces: func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.ParseIP("10.0.0.1")}, &net.IPAddr{IP: net.ParseIP("fd00::1")}, &net.UnixAddr{}}, nil
	}}
	for _, test := range []struct {
		ip   net.IP
		want string
	}{
		{nil, "nodeIP must be a valid IP address"},
		{net.IP{1, 2, 3}, "nodeIP must be a valid IP address"},
		{net.ParseIP("127.0.0.1"), "nodeIP can't be loopback address"},
		{net.ParseIP("::1"), "nodeIP can't be loopback address"},
		{net.ParseIP("224.0.0.1"), "nodeIP can't be a multicast address"},
		{net.ParseIP("ff02::1"), "nodeIP can't be a multicast address"},
		{net.ParseIP("169.254.0.1"), "nodeIP can't be a link-local unicast address"},
		{net.ParseIP("fe80::1"), "nodeIP can't be a link-local unicast address"},
		{net.ParseIP("0.0.0.0"), "nodeIP can't be an all zeros address"},
		{net.ParseIP("::"), "nodeIP can't be an all zeros address"},
		{net.ParseIP("10.0.0.2"), `node IP: "10.0.0.2" not found in the host's network interfaces`},
		{net.ParseIP("10.0.0.1"), ""},
		{net.ParseIP("fd00::1"), ""},
	} {
		apitest.Diff(t, fmt.Sprint(test.ip), test.want, apitest.ErrorText(cfg.validate(test.ip)))
	}
	cfg.Interfaces = func() ([]net.Addr, error) { return nil, errors.New("netlink: no") }
	apitest.Diff(t, "no interfaces", "netlink: no", apitest.ErrorText(cfg.validate(net.ParseIP("10.0.0.1"))))
}

// Every address that the machine really has passes, or says why not.
func TestValidateOwnAddresses(t *testing.T) {
	cfg := Addresses{}.withMachine()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Skip(err)
	}
	for _, addr := range addrs {
		ip := addr.(*net.IPNet).IP
		usable := !ip.IsLoopback() && !ip.IsLinkLocalUnicast() && !ip.IsMulticast()
		if err := cfg.validate(ip); (err == nil) != usable {
			t.Errorf("%s: %v", ip, err)
		}
	}
}

// The kubelet drops what it cannot parse, with a line in its log, and goes on
// without a node IP. A configuration that means nothing is an error here.
func TestParseNodeIPs(t *testing.T) {
	const pair = "must contain either a single IP or a dual-stack pair of IPs"
	const zero = "dual-stack node IP cannot include '0.0.0.0' or '::'"
	for text, want := range map[string]struct{ ips, err string }{
		"":                      {ips: "[]"},
		" , ":                   {ips: "[]"},
		",":                     {ips: "[]"},
		"10.0.0.1":              {ips: "[10.0.0.1]"},
		"010.0.0.01":            {ips: "[10.0.0.1]"},
		"10.0.0.1,":             {ips: "[10.0.0.1]"},
		"\t10.0.0.1\n":          {ips: "[10.0.0.1]"},
		"0.0.0.0":               {ips: "[0.0.0.0]"},
		"fd00::1":               {ips: "[fd00::1]"},
		"FD00:0:0::1":           {ips: "[fd00::1]"},
		"::ffff:10.0.0.1":       {ips: "[10.0.0.1]"},
		"::":                    {ips: "[::]"},
		"10.0.0.1,fd00::1":      {ips: "[10.0.0.1 fd00::1]"},
		" fd00::1 , 10.0.0.1 ":  {ips: "[fd00::1 10.0.0.1]"},
		"10.0.0.1,,fd00::1":     {ips: "[10.0.0.1 fd00::1]"},
		"10.0.0.1,10.0.0.1":     {err: pair},
		"10.0.0.1,10.0.0.2":     {err: pair},
		"fd00::1,fd00::2":       {err: pair},
		"10.0.0.1,fd00::1,::1":  {err: pair},
		"0.0.0.0,10.0.0.1":      {err: pair},
		"0.0.0.0,fd00::1":       {err: zero},
		"::,10.0.0.1":           {err: zero},
		"10.0.0.1,::":           {err: zero},
		"0.0.0.0,::":            {err: zero},
		"node":                  {err: `"node" is not an IP address`},
		"10.0.0.1,node":         {err: `"node" is not an IP address`},
		"10.0.0.1 fd00::1":      {err: `"10.0.0.1 fd00::1" is not an IP address`},
		"10.0.0.1/24":           {err: `"10.0.0.1/24" is not an IP address`},
		"10.0.0.256":            {err: `"10.0.0.256" is not an IP address`},
		"fe80::1%eth0,10.0.0.1": {err: `"fe80::1%eth0" is not an IP address`},
	} {
		ips, err := ParseNodeIPs(text)
		apitest.Diff(t, text, want.err, apitest.ErrorText(err))
		if err == nil {
			apitest.Diff(t, text, want.ips, fmt.Sprint(ips))
		}
	}
}

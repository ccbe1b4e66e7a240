package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	netutils "k8s.io/utils/net"

	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// providedNodeIP is read by cloud controller managers.
const providedNodeIP = "alpha.kubernetes.io/provided-node-ip"

// Addresses is how the Node's addresses are found. Functions that are nil are the
// machine's own.
type Addresses struct {
	NodeName, Hostname string
	// NodeIPs is the parsed nodeIP: none, one, or one of each family.
	NodeIPs []net.IP
	// ExternalCloudProvider leaves the addresses to a cloud controller manager
	// once it has set them.
	ExternalCloudProvider bool

	// Lookup resolves the node's name, DefaultRoute gives the address of the
	// interface with the default route, Interfaces lists the machine's own
	// addresses.
	Lookup       func(ctx context.Context, name string) ([]net.IP, error)
	DefaultRoute func(preferred net.IP) (net.IP, error)
	Interfaces   func() ([]net.Addr, error)

	last *choice // of one Content's passes; nil chooses each time
}

// ParseNodeIPs reads the nodeIP of a configuration: one address or a dual-stack
// pair, separated by a comma.
func ParseNodeIPs(text string) ([]net.IP, error) {
	var ips []net.IP
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		ip := netutils.ParseIPSloppy(part)
		if ip == nil {
			return nil, fmt.Errorf("%q is not an IP address", part)
		}
		ips = append(ips, ip)
	}
	switch {
	case len(ips) > 2, len(ips) == 2 && netutils.IsIPv6(ips[0]) == netutils.IsIPv6(ips[1]):
		return nil, errors.New("must contain either a single IP or a dual-stack pair of IPs")
	case len(ips) == 2 && (ips[0].IsUnspecified() || ips[1].IsUnspecified()):
		return nil, errors.New("dual-stack node IP cannot include '0.0.0.0' or '::'")
	}
	return ips, nil
}

// nodeAddress sets status.addresses, and the annotation from which a cloud controller
// manager reads the configured IP.
func nodeAddress(cfg Addresses) Setter {
	cfg = cfg.withMachine()
	return func(ctx context.Context, node *v1.Node) error {
		for i, ip := range cfg.NodeIPs {
			if ip.IsUnspecified() {
				continue
			}
			if err := cfg.validate(ip); err != nil && i == 0 {
				return fmt.Errorf("failed to validate nodeIP: %w", err)
			} else if err != nil {
				return fmt.Errorf("failed to validate secondaryNodeIP: %w", err)
			}
		}
		cfg.annotate(node)
		if cfg.ExternalCloudProvider {
			if len(node.Status.Addresses) > 0 {
				return nil
			}
			if len(cfg.NodeIPs) == 0 {
				node.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeHostName, Address: cfg.Hostname}}
				return nil
			}
		}
		ips := cfg.NodeIPs
		if len(ips) < 2 {
			ip, err := cfg.choose(ctx, node.Status.Addresses)
			if err != nil {
				return fmt.Errorf("can't get ip address of node %s. error: %w", cfg.NodeName, err)
			}
			ips = []net.IP{ip}
		}
		addresses := make([]v1.NodeAddress, 0, len(ips)+1)
		for _, ip := range ips {
			addresses = append(addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip.String()})
		}
		node.Status.Addresses = append(addresses, v1.NodeAddress{Type: v1.NodeHostName, Address: cfg.Hostname})
		return nil
	}
}

// specified returns the first node IP if it names an address rather than a
// family.
func (a *Addresses) specified() net.IP {
	if len(a.NodeIPs) > 0 && !a.NodeIPs[0].IsUnspecified() {
		return a.NodeIPs[0]
	}
	return nil
}

func (a *Addresses) annotate(node *v1.Node) {
	if !a.ExternalCloudProvider || a.specified() == nil {
		delete(node.Annotations, providedNodeIP)
		return
	}
	texts := make([]string, 0, 2)
	for _, ip := range a.NodeIPs {
		texts = append(texts, ip.String())
	}
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[providedNodeIP] = strings.Join(texts, ",")
}

// choose finds the one address of a node without a dual-stack pair: the configured
// one, else the hostname if it is an address, else what the node's name
// resolves to, else the address of the default route.
func (a *Addresses) choose(ctx context.Context, present []v1.NodeAddress) (net.IP, error) {
	if ip := a.specified(); ip != nil {
		return ip, nil
	}
	if ip := netutils.ParseIPSloppy(a.Hostname); ip != nil {
		return ip, nil
	}
	if a.last == nil {
		return a.search(ctx, present)
	}
	end, limited := ctx.Deadline()
	hurried := limited && time.Until(end) < lookupTimeout // as at the end of a process
	if a.last.at.IsZero() || a.last.stale(time.Now()) && !hurried {
		ip, err := a.search(ctx, present)
		*a.last = choice{time.Now(), ip, err}
	}
	return a.last.ip, a.last.err
}

func (a *Addresses) search(ctx context.Context, present []v1.NodeAddress) (net.IP, error) {
	wantIPv6 := len(a.NodeIPs) > 0 && netutils.IsIPv6(a.NodeIPs[0])
	found, err := a.lookup(ctx)
	var other net.IP
	for _, ip := range found {
		if a.validate(ip) != nil {
			continue
		}
		if netutils.IsIPv6(ip) == wantIPv6 {
			return ip, nil
		}
		if other == nil {
			other = ip
		}
	}
	if other != nil {
		return other, nil
	}
	if ip := a.current(present); err != nil && ip != nil {
		return ip, nil
	}
	preferred := net.IPv4zero
	if wantIPv6 {
		preferred = net.IPv6zero
	}
	ip, err := a.DefaultRoute(preferred)
	if err == nil && ip == nil {
		err = errors.New("no address found")
	}
	return ip, err
}

// lookupTimeout bounds how long a name server that does not answer delays the
// rest of the status.
const lookupTimeout = 2 * time.Second

// lookup resolves the node's name. If it has no address, that is no error: the default
// route decides then.
func (a *Addresses) lookup(ctx context.Context) ([]net.IP, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ips, err := a.Lookup(ctx, a.NodeName)
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		err = nil
	}
	return ips, err
}

// current returns the address that the Node has, if it is one of this machine's.
// While no name server answers it is better than the default route's, which may
// be another one: the kubelet goes back and forth.
func (a *Addresses) current(present []v1.NodeAddress) net.IP {
	for _, address := range present {
		if ip := netutils.ParseIPSloppy(address.Address); address.Type == v1.NodeInternalIP && a.validate(ip) == nil {
			return ip
		}
	}
	return nil
}

// validate checks that ip is a usable address of this machine.
func (a *Addresses) validate(ip net.IP) error {
	switch {
	case ip.To16() == nil:
		return errors.New("nodeIP must be a valid IP address")
	case ip.IsLoopback():
		return errors.New("nodeIP can't be loopback address")
	case ip.IsMulticast():
		return errors.New("nodeIP can't be a multicast address")
	case ip.IsLinkLocalUnicast():
		return errors.New("nodeIP can't be a link-local unicast address")
	case ip.IsUnspecified():
		return errors.New("nodeIP can't be an all zeros address")
	}
	addrs, err := a.Interfaces()
	if err != nil {
		return err
	}
	for _, addr := range addrs {
		var own net.IP
		switch v := addr.(type) {
		case *net.IPNet:
			own = v.IP
		case *net.IPAddr:
			own = v.IP
		}
		if own.Equal(ip) {
			return nil
		}
	}
	return fmt.Errorf("node IP: %q not found in the host's network interfaces", ip.String())
}

// withMachine fills in the functions that are not set.
func (a Addresses) withMachine() Addresses {
	if a.Lookup == nil {
		a.Lookup = bounded(machineLookup)
	}
	if a.DefaultRoute == nil {
		a.DefaultRoute = utilnet.ResolveBindAddress
	}
	if a.Interfaces == nil {
		a.Interfaces = net.InterfaceAddrs
	}
	return a
}

// bounded gives a lookup a deadline. The resolver reads /etc/hosts and
// /etc/resolv.conf, and each call that a context alone had ended there would leave its
// goroutines behind for as long as the disk hangs.
func bounded(lookup func(context.Context, string) ([]net.IP, error)) func(context.Context, string) ([]net.IP, error) {
	type result struct {
		ips []net.IP
		err error
	}
	var worker deadline.Worker[result]
	return func(ctx context.Context, name string) ([]net.IP, error) {
		r, err := worker.Do(lookupTimeout, "resolve "+name, func() (r result) {
			r.ips, r.err = lookup(context.WithoutCancel(ctx), name)
			return r
		})
		return r.ips, cmp.Or(err, r.err)
	}
}

func machineLookup(ctx context.Context, name string) ([]net.IP, error) {
	return net.DefaultResolver.LookupIP(ctx, "ip", name)
}

// choice is the latest choice of an address. Looking again reads several files, dumps
// all interfaces and may ask a name server that does not answer; a change must not wait
// for that each time.
type choice struct {
	at  time.Time
	ip  net.IP
	err error
}

// How long a choice serves, and how long a failure to find one does.
const (
	choiceServes = time.Minute
	choiceFailed = 10 * time.Second
)

// stale reports whether there was a choice that does not serve any longer.
func (c *choice) stale(now time.Time) bool {
	serves := choiceServes
	if c.err != nil {
		serves = choiceFailed
	}
	return !c.at.IsZero() && now.Sub(c.at) >= serves
}

package node

import (
	"context"
	"net"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

const (
	kib = int64(1024)
	mib = 1024 * kib
	gib = 1024 * mib
)

// machineFacts are those of a healthy machine with 4 CPUs at one time.
func machineFacts(at time.Time) Facts {
	f := Facts{Snapshot: probe.Snapshot{
		Time: at,
		Machine: probe.Machine{
			MachineID: "machine", SystemUUID: "uuid", BootID: "boot",
			KernelVersion: "6.12.0", OSImage: "Debian GNU/Linux 13 (trixie)",
		},
		Capacity: probe.Capacity{
			CPUs: 4, Memory: 16384256 * kib, MemoryOK: true, EphemeralStorage: 129900528 * kib,
			HugePages: [probe.MaxHugePageSizes]probe.HugePages{{PageSize: 2 * mib}, {PageSize: gib}}, NumHugePages: 2,
		},
	}}
	for i := range f.Verdicts {
		f.Verdicts[i] = pressure.Verdict{Condition: pressure.Condition(i), Status: pressure.False, Since: at}
	}
	return f
}

// testAddresses are those of a node whose address is configured.
func testAddresses() Addresses {
	return Addresses{
		NodeName: apitest.NodeName, Hostname: apitest.NodeName, NodeIPs: []net.IP{net.ParseIP("10.0.0.1")},
		Interfaces: func() ([]net.Addr, error) { return ownAddresses("10.0.0.1"), nil },
	}
}

func ownAddresses(ips ...string) []net.Addr {
	var addrs []net.Addr
	for _, ip := range ips {
		addrs = append(addrs, &net.IPNet{IP: net.ParseIP(ip), Mask: net.CIDRMask(24, 32)})
	}
	return addrs
}

func testResources() Resources {
	return Resources{MaxPods: 110, LocalStorageCapacityIsolation: true}
}

// set runs one setter.
func set(t *testing.T, node *v1.Node, setter Setter) {
	t.Helper()
	if err := setter(context.Background(), node); err != nil {
		t.Error(err)
	}
}

// quantities returns a list of resources in the form that the API shows.
func quantities(list v1.ResourceList) map[string]string {
	texts := map[string]string{}
	for name, q := range list {
		texts[string(name)] = q.String()
	}
	return texts
}

func thresholds(t *testing.T, config pressure.Config) []pressure.Threshold {
	t.Helper()
	list, _, err := pressure.Parse(config)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

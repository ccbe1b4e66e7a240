package status

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

const (
	nodeName = "node-1"
	kib      = int64(1024)
	mib      = 1024 * kib
	gib      = 1024 * mib
)

// epoch is where the clock of a synctest bubble starts.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

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

// testAddresses are those of a node that was told its address.
func testAddresses() Addresses {
	return Addresses{
		NodeName: nodeName, Hostname: nodeName, NodeIPs: []net.IP{net.ParseIP("10.0.0.1")},
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

func resources(pairs map[string]string) v1.ResourceList {
	if pairs == nil {
		return nil
	}
	list := v1.ResourceList{}
	for name, text := range pairs {
		list[v1.ResourceName(name)] = resource.MustParse(text)
	}
	return list
}

func thresholds(t *testing.T, config pressure.Config) []pressure.Threshold {
	t.Helper()
	list, _, err := pressure.Parse(config)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func at(seconds int) metav1.Time {
	return metav1.NewTime(epoch.Add(time.Duration(seconds) * time.Second))
}

func diff(t *testing.T, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if d := cmp.Diff(want, got, options...); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

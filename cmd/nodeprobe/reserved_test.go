package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/utils/cpuset"
)

// The CPUs that are kept from pods count in place of what else is reserved of
// cpu, and of nothing else.
func TestReservedSystemCPUs(t *testing.T) {
	c := defaults()
	c.ReservedSystemCPUs = "0,2-3"
	c.SystemReserved = map[string]string{"cpu": "100m", "memory": "1Gi"}
	c.KubeReserved = map[string]string{"cpu": "200m", "memory": "2Gi"}
	p, problems := c.policy()
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	system, kube := p.resources.SystemReserved, p.resources.KubeReserved
	if got := system.Cpu().String(); got != "3" {
		t.Errorf("systemReserved[cpu] is %s", got)
	}
	if _, ok := kube["cpu"]; ok || kube.Memory().String() != "2Gi" || system.Memory().String() != "1Gi" {
		t.Errorf("systemReserved %v, kubeReserved %v", system, kube)
	}
}

func TestCheckReserved(t *testing.T) {
	for _, test := range []struct{ online, reserved, want string }{
		{"0-3\n", "", ""},
		{"", "", ""}, // nothing to look at, and nobody looks
		{"0-3\n", "0-3", ""},
		{"0-1,3\n", "1,3", ""},
		{"0-1,3\n", "1-3", "reserved-cpus: 1-3 is not a subset of online-cpus: 0-1,3"},
		{"0\n", "5", "reserved-cpus: 5 is not a subset of online-cpus: 0"},
		{"garbage\n", "0", "devices/system/cpu/online"},
		{"", "0", "check reservedSystemCPUs: open"},
	} {
		sysfs := t.TempDir()
		if test.online != "" {
			file := filepath.Join(sysfs, "devices/system/cpu/online")
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(test.online), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		reserved, err := cpuset.Parse(test.reserved)
		if err != nil {
			t.Fatal(err)
		}
		err = checkReserved(reserved, sysfs)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q of %q: %v, want %q", test.reserved, test.online, err, test.want)
		}
	}
}

package probe

import (
	"os"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

	"golang.org/x/sys/unix"
)

func readMachine(t *testing.T, n node) (Machine, error) {
	t.Helper()
	s := n.sampler(t).Sample()
	return s.Machine, s.Errors[SourceMachine]
}

func TestOSImage(t *testing.T) {
	const etc, usr = "etc/os-release", "usr/lib/os-release"
	for _, test := range []struct {
		name string
		machine
		want string
	}{
		{"quotes", machine{etc: "NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\n"}, "Debian GNU/Linux 12 (bookworm)"},
		{"no quotes", machine{etc: "PRETTY_NAME=Buildroot\n"}, "Buildroot"},
		{"single quotes stay, as in the kubelet", machine{etc: "PRETTY_NAME='Alpine Linux v3.20'\n"}, "'Alpine Linux v3.20'"},
		{"no newline at the end", machine{etc: `PRETTY_NAME="Arch Linux"`}, "Arch Linux"},
		{"carriage return", machine{etc: "PRETTY_NAME=\"Yocto\"\r\nID=y\r\n"}, "Yocto"},
		{"empty value", machine{etc: "PRETTY_NAME=\"\"\n"}, ""},
		{"no PRETTY_NAME", machine{etc: "NAME=x\nMY_PRETTY_NAME=y\n#PRETTY_NAME=z\n"}, "Linux"},
		{"empty file", machine{etc: ""}, "Linux"},
		{"the first counts", machine{etc: "PRETTY_NAME=a\nPRETTY_NAME=b\n"}, "a"},
		{"in /usr only", machine{usr: "PRETTY_NAME=\"Clear Linux OS\"\n"}, "Clear Linux OS"},
		{"etc wins", machine{etc: "PRETTY_NAME=a\n", usr: "PRETTY_NAME=b\n"}, "a"},
		{"Latin-1", machine{etc: "PRETTY_NAME=\"Caf\xe9 OS\"\n"}, "Caf\uFFFD OS"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, err := readMachine(t, test.machine.boot(t))
			if m.OSImage != test.want || err != nil {
				t.Errorf("%q, %v; want %q", m.OSImage, err, test.want)
			}
		})
	}
	m, err := readMachine(t, machine{}.boot(t))
	probetest.CheckError(t, err, os.ErrNotExist)
	if m.OSImage != "Unknown" || !strings.Contains(err.Error(), usr) {
		t.Errorf("no file: %q, %v", m.OSImage, err)
	}
}

func TestMachineID(t *testing.T) {
	const etc, dbus = "etc/machine-id", "var/lib/dbus/machine-id"
	for _, test := range []struct {
		name string
		machine
		want string
		err  error
	}{
		{"etc", machine{etc: "abc\n", dbus: "def\n"}, "abc", nil},
		{"dbus", machine{dbus: "def\n"}, "def", nil},
		{"an empty file counts, as in the kubelet", machine{etc: "", dbus: "def\n"}, "", nil},
		{"neither", machine{}, "", nil},
		{"etc is broken", machine{etc + "/x": "", dbus: "def\n"}, "def", nil},
		{"the only one is broken", machine{etc + "/x": ""}, "", unix.EISDIR},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, err := readMachine(t, test.machine.with(machine{"etc/os-release": ""}).boot(t))
			probetest.CheckError(t, err, test.err)
			if m.MachineID != test.want {
				t.Errorf("%q, want %q", m.MachineID, test.want)
			}
		})
	}
}

func TestSystemUUID(t *testing.T) {
	const (
		dmi = "sys/class/dmi/id/product_uuid"
		dt  = "proc/device-tree/system-id"
		vm  = "proc/device-tree/vm,uuid"
	)
	id := machine{"etc/machine-id": "machine\n", "etc/os-release": ""}
	for _, test := range []struct {
		name string
		machine
		want string
	}{
		{"firmware", id.with(machine{dmi: "uuid\n", dt: "x\x00"}), "uuid"},
		{"firmware that keeps it secret", id.with(machine{dmi + "/x": "", dt: "tree\x00"}), "tree"},
		{"firmware that has none", id.with(machine{dmi: "\n"}), "machine"},
		{"other firmware facts do not matter", id.with(machine{dmi: "uuid\n", "sys/class/dmi/id/bios_date/x": ""}), "uuid"},
		{"device tree", id.with(machine{dt: "tree\x00", vm: "vm\x00"}), "tree"},
		{"virtual machine", id.with(machine{vm: "vm\x00\n"}), "vm"},
		{"device tree of NULs", id.with(machine{dt: "\x00\x00"}), "machine"},
		{"not text", id.with(machine{dt: "\xff\xfe\x00"}), "\uFFFD"},
		{"board", id, "machine"},
		{"nothing", machine{"etc/os-release": ""}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, err := readMachine(t, test.machine.boot(t))
			if m.SystemUUID != test.want || err != nil {
				t.Errorf("%q, %v; want %q", m.SystemUUID, err, test.want)
			}
		})
	}
}

func TestNoCPUQuota(t *testing.T) {
	const cpu = "sys/fs/cgroup/cpu/"
	shares := machine{cpu + "cpu.shares": "1024\n"}
	for name, test := range map[string]struct {
		machine
		want bool
	}{
		"v1 with quotas":     {shares.with(machine{cpu + "cpu.cfs_period_us": "100000\n", cpu + "cpu.cfs_quota_us": "-1\n"}), false},
		"v1 without quotas":  {shares, true},
		"v1, only one file":  {shares.with(machine{cpu + "cpu.cfs_period_us": "100000\n"}), true},
		"v1, no controller":  {machine{cpu + "tasks": ""}, false},
		"v2":                 {fullMachine, false},
		"no cgroups":         {machine{}, false},
		"v1, another kernel": {shares.with(machine{cpu + "cpu.cfs_quota_us": "-1\n"}), true},
	} {
		if m, _ := readMachine(t, test.machine.boot(t)); m.NoCPUQuota != test.want {
			t.Errorf("%s: %t, want %t", name, m.NoCPUQuota, test.want)
		}
	}
}

// The machine does not change because a file cannot be read. Were the boot ID
// to vanish and come back, that would look like a reboot.
func TestMachineKeepsWhatItKnows(t *testing.T) {
	n := fullMachine.boot(t)
	s := n.sampler(t)
	before := s.Sample().Machine
	for _, name := range []string{"etc/machine-id", "proc/sys/kernel/random/boot_id", "etc/os-release"} {
		n.Remove(t, name)
		n.Write(t, name+"/x", "") // a directory
	}
	m, err := resample(s).Machine, s.current.Errors[SourceMachine]
	probetest.CheckError(t, err, unix.EISDIR)
	for _, says := range []string{"etc/machine-id", "boot_id", "etc/os-release"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not name %s", err, says)
		}
	}
	if m != before {
		t.Errorf("was %+v, is %+v", before, m)
	}
}

// What os-release links to is on the node.
func TestMachineFollowsLinksOfTheNode(t *testing.T) {
	n := machine{"usr/lib/real": "PRETTY_NAME=\"NixOS\"\n"}.boot(t)
	n.Link(t, "/usr/lib/real", "etc/os-release")
	if m, err := readMachine(t, n); m.OSImage != "NixOS" {
		t.Errorf("OS image %q, %v", m.OSImage, err)
	}
}

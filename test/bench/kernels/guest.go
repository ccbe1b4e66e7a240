package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// Where things are in the guest.
const (
	initPath      = "/init"
	truePath      = "/bin/true"
	kernelTypes   = "/sys/kernel/btf/vmlinux"
	kernelRelease = "/proc/sys/kernel/osrelease"

	// The first disk has an ext4 file system, to be worn out by the tests; the
	// second is for what the guest brings home, as a tar file.
	scratchDisk = "/dev/vda"
	resultDisk  = "/dev/vdb"

	hostname = "kernel-under-test"
)

// step is a command to run, whatever came of the one before. A guest that lacks it is
// booted for its files only.
type step struct {
	name string
	args []string
}

// The tests come first: the snapshot then has OOM kills to count.
var steps = []step{
	{"bpf tests", []string{"/bin/bpf.test", "-test.v=test2json", "-test.timeout=8m", "-test.run=" + os.Getenv("RUN")}},
	{"preflight", []string{"/bin/nodeprobe", "preflight"}},
	{"preflight json", []string{"/bin/nodeprobe", "preflight", "-o", "json"}},
	{"trial", []string{trialPath}},
	{"storm", []string{actorPath}},
	{"snapshot", []string{"/bin/nodeprobe", "snapshot", "-o", "json"}},
}

// broughtHome are files that the guest brings home as well.
var broughtHome = []string{"/proc/meminfo", "/proc/vmstat", kernelRelease, kernelTypes}

// diary is what the guest writes down about its work. Names in the tar file are
// diaryName, those of broughtHome, and of each step by outputName.
type diary struct {
	// Setup is what could not be prepared.
	Setup []string
	// Boot is how long it took to get to /init, by the kernel's clock.
	Boot  time.Duration
	Steps []outcome
}

const diaryName = "diary.json"

type outcome struct {
	Name  string
	Error string // "" for exit code 0
	Took  time.Duration
}

func outputName(step, stream string) string { return "steps/" + step + "/" + stream }

// guest is process 1. It does not return: the machine is turned off.
func guest() {
	if err := program.Run(context.Background(), "init", nil, os.Stdout, os.Stdout, live); err != nil {
		fmt.Println("/init:", err)
	}
	// Has the kernel write what the disks have not got yet.
	unix.Sync()
	fmt.Println("/init: power off:", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
	for {
		time.Sleep(time.Hour) // A process 1 that ends is a kernel panic.
	}
}

func live(p *program.P) {
	d := diary{Boot: clock(unix.CLOCK_MONOTONIC), Setup: prepare()}
	fmt.Println("/init:", d.Setup)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(name string, data []byte) {
		must.OK(p, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), Format: tar.FormatPAX}))
		must.Get(w.Write(data))(p)
	}
	for _, s := range steps {
		if _, err := os.Stat(s.args[0]); err != nil {
			continue
		}
		var stdout, stderr bytes.Buffer
		fmt.Printf("=== begin %s: %q\n", s.name, s.args)
		o := s.run(io.MultiWriter(os.Stdout, &stdout), io.MultiWriter(os.Stdout, &stderr))
		fmt.Printf("=== end %s after %s %s\n", s.name, o.Took, o.Error)
		d.Steps = append(d.Steps, o)
		add(outputName(s.name, "stdout"), stdout.Bytes())
		add(outputName(s.name, "stderr"), stderr.Bytes())
	}
	for _, name := range broughtHome {
		data, err := os.ReadFile(name)
		if err != nil {
			d.Setup = append(d.Setup, err.Error())
			continue
		}
		add(name, data)
	}
	add(diaryName, must.Get(json.Marshal(d))(p))
	must.OK(p, w.Close())
	disk := must.Get(os.OpenFile(resultDisk, os.O_WRONLY, 0))(p)
	must.Get(disk.Write(archive.Bytes()))(p)
	must.OK(p, errors.Join(disk.Sync(), disk.Close()))
}

func (s step) run(stdout, stderr io.Writer) outcome {
	cmd := exec.CommandContext(context.Background(), s.args[0], s.args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/src/bpf", stdout, stderr
	cmd.Env = []string{"PATH=/bin", "HOME=/root", "TMPDIR=/tmp"}
	cmd.WaitDelay = time.Second // for what it left running
	o, start := outcome{Name: s.name}, time.Now()
	if err := cmd.Run(); err != nil {
		o.Error = err.Error()
	}
	o.Took = time.Since(start).Round(time.Millisecond)
	return o
}

// prepare makes of the bare kernel a machine as nodes are: with cgroup v2 and
// disks. It returns what it could not do.
func prepare() (failures []string) {
	try := func(what string, err error) {
		if err != nil {
			failures = append(failures, what+": "+err.Error())
		}
	}
	mount := func(source, dir, kind string) {
		try("mount "+dir, unix.Mount(source, dir, kind, 0, ""))
	}
	mount("proc", "/proc", "proc")
	mount("sysfs", "/sys", "sysfs")
	mount("devtmpfs", "/dev", "devtmpfs")
	mount("cgroup2", "/sys/fs/cgroup", "cgroup2")
	mount("tracefs", "/sys/kernel/tracing", "tracefs")
	mount("tmpfs", "/run", "tmpfs")

	// What systemd does on every node.
	const control = "/sys/fs/cgroup/cgroup.subtree_control"
	for _, controller := range []string{"+memory", "+pids"} {
		try("enable "+controller, os.WriteFile(control, []byte(controller), 0))
	}
	try("set host name", unix.Sethostname([]byte(hostname)))

	for _, name := range bootModules {
		if err := insertModule(name); !errors.Is(err, errBuiltIn) {
			try("insert "+name, err)
		}
	}
	try("set up network", setUpNetwork())
	// Found by the kernel while it has other things to do.
	for _, disk := range []string{scratchDisk, resultDisk} {
		try("wait for "+disk, appears(disk, 20*time.Second))
	}
	mount(scratchDisk, "/tmp", "ext4")
	try("open /tmp to all users", os.Chmod("/tmp", 0o777|os.ModeSticky))
	return failures
}

func appears(name string, timeout time.Duration) error {
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		_, err := os.Stat(name)
		if err == nil || time.Since(start) > timeout {
			return err
		}
	}
}

// setUpNetwork makes an interface with an address and a default route, by which
// a Node finds its address. It leads to the host if the guest has a network card, with
// the addresses that qemu gives out, or else nowhere.
func setUpNetwork() error {
	card, address, gateway := "eth0", [4]byte{10, 0, 2, 15}, [4]byte{10, 0, 2, 2}
	if _, err := os.Stat("/sys/class/net/" + card); err != nil {
		card, address, gateway = "dummy0", [4]byte{192, 0, 2, 1}, [4]byte{192, 0, 2, 2}
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	up := func(ifr *unix.Ifreq) error { ifr.SetUint16(unix.IFF_UP); return nil }
	for _, set := range []struct {
		name    string
		request uint
		to      func(*unix.Ifreq) error
	}{
		{card, unix.SIOCSIFADDR, func(ifr *unix.Ifreq) error { return ifr.SetInet4Addr(address[:]) }},
		{card, unix.SIOCSIFFLAGS, up},
		{"lo", unix.SIOCSIFFLAGS, up},
	} {
		ifr, err := unix.NewIfreq(set.name)
		if err == nil {
			err = set.to(ifr)
		}
		if err == nil {
			err = unix.IoctlIfreq(fd, set.request, ifr)
		}
		if err != nil {
			return fmt.Errorf("set up %s: %w", set.name, err)
		}
	}
	inet := func(address [4]byte) unix.RawSockaddrInet4 {
		return unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: address}
	}
	// struct rtentry of the kernel, whose other fields stay 0.
	route := struct {
		_                        uint64
		target, gateway, genmask unix.RawSockaddrInet4
		flags                    uint16
		_                        [64]byte
	}{
		target: inet([4]byte{}), gateway: inet(gateway), genmask: inet([4]byte{}),
		flags: unix.RTF_UP | unix.RTF_GATEWAY,
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCADDRT, uintptr(unsafe.Pointer(&route))); errno != 0 {
		return fmt.Errorf("add route: %w", errno)
	}
	return nil
}

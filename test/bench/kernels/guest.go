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
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Where things are in the guest.
const (
	initPath    = "/init"
	truePath    = "/bin/true"
	planPath    = "/plan.json"
	modulesPath = "/modules"
	kernelTypes = "/sys/kernel/btf/vmlinux"

	// The first disk has an ext4 file system, to be worn out by the tests; the
	// second is for what the guest brings home, as a tar file.
	scratchDisk = "/dev/vda"
	resultDisk  = "/dev/vdb"

	hostname = "kernel-under-test"
)

// plan is what the guest has to do.
type plan struct {
	Steps []step
	// Files are to be brought home afterwards.
	Files []string
}

// step is a command to run, whatever came of the one before.
type step struct {
	Name string
	Dir  string
	Args []string
}

// diary is what the guest writes down about its work. Names in the tar file are
// diaryName, those of plan.Files, and of each step by outputName.
type diary struct {
	// Setup says what could not be prepared.
	Setup []string
	// Boot is how long it took to get to /init, by the kernel's clock.
	Boot  time.Duration
	Steps []outcome
}

const diaryName = "diary.json"

type outcome struct {
	Name string
	// Exit is the exit code, -1 after a signal, Error a word about it or why
	// the command could not be run.
	Exit  int
	Error string
	Took  time.Duration
}

func outputName(step, stream string) string { return "steps/" + step + "/" + stream }

// guest is process 1. It does not return: the machine is turned off.
func guest() {
	if err := live(); err != nil {
		fmt.Println("/init:", err)
	}
	// Has the kernel write what the disks have not got yet.
	unix.Sync()
	fmt.Println("/init: power off:", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
	for {
		time.Sleep(time.Hour) // A process 1 that ends is a kernel panic.
	}
}

func live() error {
	var d diary
	if d.Boot = uptime(); d.Boot == 0 {
		return errors.New("no clock")
	}
	d.Setup = prepare()
	for _, text := range d.Setup {
		fmt.Println("/init:", text)
	}
	data, err := os.ReadFile(planPath)
	if err != nil {
		return err
	}
	var p plan
	if err := json.Unmarshal(data, &p); err != nil {
		return err
	}

	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, s := range p.Steps {
		var stdout, stderr bytes.Buffer
		fmt.Printf("=== begin %s: %q\n", s.Name, s.Args)
		o := s.run(io.MultiWriter(os.Stdout, &stdout), io.MultiWriter(os.Stdout, &stderr))
		fmt.Printf("=== end %s: exit code %d after %s %s\n", s.Name, o.Exit, o.Took, o.Error)
		d.Steps = append(d.Steps, o)
		add(w, outputName(s.Name, "stdout"), stdout.Bytes())
		add(w, outputName(s.Name, "stderr"), stderr.Bytes())
	}
	for _, name := range p.Files {
		data, err := os.ReadFile(name)
		if err != nil {
			d.Setup = append(d.Setup, err.Error())
			continue
		}
		add(w, name, data)
	}
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	add(w, diaryName, text)
	if err := w.Close(); err != nil {
		return err
	}
	return writeDisk(resultDisk, archive.Bytes())
}

// add writes to memory, which does not fail; what does comes out at Close.
func add(w *tar.Writer, name string, data []byte) {
	_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), Format: tar.FormatPAX})
	_, _ = w.Write(data)
}

func writeDisk(name string, data []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

func (s step) run(stdout, stderr io.Writer) outcome {
	cmd := exec.CommandContext(context.Background(), s.Args[0], s.Args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Dir, stdout, stderr
	cmd.Env = []string{"PATH=/bin", "HOME=/root", "TMPDIR=/tmp"}
	cmd.WaitDelay = time.Second // for what it left running
	start := time.Now()
	err := cmd.Run()
	o := outcome{Name: s.Name, Took: time.Since(start).Round(time.Millisecond)}
	if err != nil {
		o.Exit, o.Error = -1, err.Error()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			o.Exit = exit.ExitCode()
		}
	}
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

	modules, err := filepath.Glob(modulesPath + "/*.ko")
	try("list modules", err)
	for _, name := range modules {
		try("insert "+name, insertModule(name))
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

func insertModule(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
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
// a Node finds its address. It leads nowhere.
func setUpNetwork() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	for _, set := range []struct {
		request uint
		what    string
		address []byte
	}{
		{unix.SIOCSIFADDR, "address", []byte{192, 0, 2, 1}},
		{unix.SIOCSIFNETMASK, "netmask", []byte{255, 255, 255, 0}},
	} {
		ifr, err := unix.NewIfreq("dummy0")
		if err != nil {
			return err
		}
		if err := ifr.SetInet4Addr(set.address); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, set.request, ifr); err != nil {
			return fmt.Errorf("set %s of dummy0: %w", set.what, err)
		}
	}
	ifr, err := unix.NewIfreq("dummy0")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("set dummy0 up: %w", err)
	}
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	inet := func(a, b, c, d byte) unix.RawSockaddrInet4 {
		return unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: [4]byte{a, b, c, d}}
	}
	// struct rtentry of the kernel, whose other fields stay 0.
	route := struct {
		_                        uint64
		target, gateway, genmask unix.RawSockaddrInet4
		flags                    uint16
		_                        [64]byte
	}{
		target: inet(0, 0, 0, 0), gateway: inet(192, 0, 2, 2), genmask: inet(0, 0, 0, 0),
		flags: unix.RTF_UP | unix.RTF_GATEWAY,
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCADDRT, uintptr(unsafe.Pointer(&route))); errno != 0 {
		return fmt.Errorf("add route: %w", errno)
	}
	return nil
}

func uptime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano()).Round(time.Millisecond)
}

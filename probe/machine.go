package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// read finds out what the machine is. A fact that the machine does not have is
// "". One that is there and could not be read keeps the value it had, as the
// machine is still the same, and the error says so.
func (m *Machine) read(procfs, sysfs, rootfs string) error {
	var errs []error
	keep := func(fact *string, value string, err error) {
		if err != nil {
			errs = append(errs, err)
			return
		}
		*fact = value
	}
	m.OperatingSystem, m.Architecture = runtime.GOOS, runtime.GOARCH
	machineID, err := readMachineID(rootfs)
	keep(&m.MachineID, machineID, err)
	bootID, err := readText(filepath.Join(procfs, "sys/kernel/random/boot_id"))
	if err != nil {
		err = fmt.Errorf("read boot ID: %w", err)
	}
	keep(&m.BootID, bootID, err)
	release, err := kernelRelease()
	keep(&m.KernelVersion, release, err)
	image, err := osImage(rootfs)
	keep(&m.OSImage, image, err)
	if err != nil && m.OSImage == "" {
		m.OSImage = "Unknown" // the kubelet's word
	}
	m.SystemUUID = systemUUID(procfs, sysfs, m.MachineID)
	m.NoCPUQuota = noCPUQuota(filepath.Join(sysfs, "fs/cgroup"))
	return errors.Join(errs...)
}

// readMachineID takes the first file that can be read, even if it is empty, as
// it is on an image that has not been booted before. It fails if none can be
// read, and there is one.
func readMachineID(rootfs string) (string, error) {
	var errs []error
	for _, path := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		b, err := readNodeFile(rootfs, path)
		if err == nil {
			return cleanText(b), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("read machine ID: %w", err))
		}
	}
	return "", errors.Join(errs...)
}

// readText returns the trimmed text of a file, or "" where there is none.
func readText(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return cleanText(b), nil
}

// cleanText drops the white space and the NULs that device-tree files end in.
// Firmware may hold any bytes; neither the metrics nor the API bear them.
func cleanText(b []byte) string {
	return strings.ToValidUTF8(strings.TrimSpace(string(bytes.Trim(b, "\x00\n "))), "\uFFFD")
}

// systemUUID asks the firmware (which tells root only), then the device tree. A
// board that has neither goes by its machine ID, as the kubelet does.
func systemUUID(procfs, sysfs, machineID string) string {
	for _, path := range []string{
		filepath.Join(sysfs, "class/dmi/id/product_uuid"),
		filepath.Join(procfs, "device-tree/system-id"),
		filepath.Join(procfs, "device-tree/vm,uuid"),
	} {
		if id, err := readText(path); err == nil && id != "" {
			return id
		}
	}
	return machineID
}

// noCPUQuota says whether there is a CPU controller of cgroup v1 without the files
// for quotas: a kernel without CONFIG_CFS_BANDWIDTH. With v2 the kubelet takes
// quotas for granted.
func noCPUQuota(cgroupfs string) bool {
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(cgroupfs, "cpu", name))
		return err == nil
	}
	quota := exists("cpu.cfs_period_us") && exists("cpu.cfs_quota_us")
	return exists("cpu.shares") && !quota
}

func kernelRelease() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", fmt.Errorf("uname: %w", err)
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}

var prettyName = regexp.MustCompile(`(?m)^PRETTY_NAME=(.*)$`)

// osImage returns PRETTY_NAME of os-release, without double quotes and with
// single ones, or "Linux" where there is no such line: as the kubelet does.
func osImage(rootfs string) (string, error) {
	b, err := readNodeFile(rootfs, "/etc/os-release")
	if errors.Is(err, fs.ErrNotExist) {
		b, err = readNodeFile(rootfs, "/usr/lib/os-release")
	}
	if err != nil {
		return "", fmt.Errorf("read OS image: %w", err)
	}
	found := prettyName.FindSubmatch(b)
	if found == nil {
		return "Linux", nil
	}
	return strings.Trim(cleanText(found[1]), `"`), nil
}

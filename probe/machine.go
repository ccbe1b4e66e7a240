package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/nodeprobe/nodeprobe/probe/rootfs"

	"github.com/prometheus/procfs/sysfs"
	"golang.org/x/sys/unix"
)

// readMachineID returns the content of the first file that can be read, even if that is
// empty, as on an image that has not been booted before. It returns an error if none can
// be read although one exists.
func readMachineID(root string, at func(path string)) (string, error) {
	var errs []error
	for _, path := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		b, err := readNodeFile(root, path, at)
		if err == nil {
			return cleanText(b), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("read machine ID: %w", err))
		}
	}
	return "", errors.Join(errs...)
}

func readBootID(procfs string, at func(path string)) (string, error) {
	id, err := readText(filepath.Join(procfs, "sys/kernel/random/boot_id"), at)
	if err != nil {
		return "", fmt.Errorf("read boot ID: %w", err)
	}
	return id, nil
}

// readText returns the trimmed text of a file, "" if it does not exist.
func readText(path string, at func(path string)) (string, error) {
	at(path)
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return cleanText(b), nil
}

// cleanText drops white space, and the NUL that device-tree files end in. Firmware may
// hold any bytes, and neither the metrics nor the API accept invalid UTF-8.
func cleanText(b []byte) string {
	return strings.ToValidUTF8(strings.TrimSpace(string(bytes.Trim(b, "\x00\n "))), "\uFFFD")
}

// firmwareUUID returns the UUID of the firmware (which only root may read), else that of
// the device tree, else "".
func firmwareUUID(procfs, sysfsRoot string, at func(path string)) string {
	at(filepath.Join(sysfsRoot, "class/dmi/id"))
	if sys, err := sysfs.NewFS(sysfsRoot); err == nil {
		// An error means that there is no DMI.
		if dmi, err := sys.DMIClass(); err == nil && dmi.ProductUUID != nil {
			if id := cleanText([]byte(*dmi.ProductUUID)); id != "" {
				return id
			}
		}
	}
	for _, path := range []string{
		filepath.Join(procfs, "device-tree/system-id"),
		filepath.Join(procfs, "device-tree/vm,uuid"),
	} {
		if id, err := readText(path, at); err == nil && id != "" {
			return id
		}
	}
	return ""
}

// noCPUQuota reports whether the CPU controller is that of cgroup v1 and lacks the files
// for quotas, as in a kernel without CONFIG_CFS_BANDWIDTH. With v2 the kubelet takes
// quotas for granted.
func noCPUQuota(cgroupfs string, at func(path string)) bool {
	at(cgroupfs)
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

// osImage returns PRETTY_NAME of os-release, or "Linux" if it has none. As in the
// kubelet, double quotes are removed and single ones kept.
func osImage(root string, at func(path string)) (string, error) {
	b, err := readNodeFile(root, "/etc/os-release", at)
	if errors.Is(err, fs.ErrNotExist) {
		b, err = readNodeFile(root, "/usr/lib/os-release", at)
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

// readNodeFile calls at and reads a file of the node.
func readNodeFile(root, path string, at func(path string)) ([]byte, error) {
	at(filepath.Join(root, path))
	return rootfs.ReadFile(root, path)
}

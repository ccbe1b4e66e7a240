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

	"github.com/prometheus/procfs/sysfs"
	"golang.org/x/sys/unix"
)

// readMachine finds out what the machine is. A fact that the machine does not
// have is ""; an error says that one is there and could not be read.
func readMachine(procfs, sysfsRoot, rootfs string) (Machine, error) {
	m := Machine{OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH}
	var errs []error
	var err error
	if m.MachineID, err = firstFile(
		filepath.Join(rootfs, "etc/machine-id"),
		filepath.Join(rootfs, "var/lib/dbus/machine-id"),
	); err != nil {
		errs = append(errs, fmt.Errorf("read machine ID: %w", err))
	}
	if m.BootID, err = firstFile(filepath.Join(procfs, "sys/kernel/random/boot_id")); err != nil {
		errs = append(errs, fmt.Errorf("read boot ID: %w", err))
	}
	m.SystemUUID = systemUUID(procfs, sysfsRoot, m.MachineID)
	if m.KernelVersion, err = kernelRelease(); err != nil {
		errs = append(errs, err)
	}
	if m.OSImage, err = osImage(rootfs); err != nil {
		errs = append(errs, err)
	}
	return m, errors.Join(errs...)
}

// firstFile returns the trimmed text of the first file that exists, or "".
func firstFile(paths ...string) (string, error) {
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		return cleanText(b), nil
	}
	return "", nil
}

// cleanText drops the white space and the NULs that device-tree files end in.
func cleanText(b []byte) string { return strings.TrimSpace(string(bytes.Trim(b, "\x00\n "))) }

// systemUUID asks the firmware, then the device tree. A board that has neither
// goes by its machine ID, as the kubelet does.
func systemUUID(procfs, sysfsRoot, machineID string) string {
	if fs, err := sysfs.NewFS(sysfsRoot); err == nil {
		if dmi, err := fs.DMIClass(); err == nil && dmi.ProductUUID != nil {
			return *dmi.ProductUUID
		}
	}
	for _, name := range []string{"device-tree/system-id", "device-tree/vm,uuid"} {
		if id, err := firstFile(filepath.Join(procfs, name)); err == nil && id != "" {
			return id
		}
	}
	return machineID
}

func kernelRelease() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", fmt.Errorf("uname: %w", err)
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}

var prettyName = regexp.MustCompile(`(?m)^PRETTY_NAME=(.*)$`)

// osImage returns PRETTY_NAME of os-release, "Linux" where there is no such
// line, and "Unknown" with an error where the file cannot be read: the same
// words as the kubelet's.
func osImage(rootfs string) (string, error) {
	b, err := os.ReadFile(filepath.Join(rootfs, "etc/os-release"))
	if errors.Is(err, fs.ErrNotExist) {
		b, err = os.ReadFile(filepath.Join(rootfs, "usr/lib/os-release"))
	}
	if err != nil {
		return "Unknown", fmt.Errorf("read OS image: %w", err)
	}
	found := prettyName.FindSubmatch(b)
	if found == nil {
		return "Linux", nil
	}
	return strings.Trim(strings.TrimSpace(string(found[1])), `"`), nil
}

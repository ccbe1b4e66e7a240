package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// privileges is what this process may keep once everything is attached and bound.
type privileges struct {
	permitted uint64 // what it has, one bit each
	kept      []capability
}

// Capabilities that are of use later. Their remedy is why.
var (
	capDACReadSearch = capability{"CAP_DAC_READ_SEARCH", unix.CAP_DAC_READ_SEARCH, "directories and files of others"}
	capSysResource   = capability{"CAP_SYS_RESOURCE", unix.CAP_SYS_RESOURCE, "hearing of stalls within half a second"}
	capBPF           = capability{"CAP_BPF", unix.CAP_BPF, "telling the kernel other limits"}
)

// needed finds out which capabilities are needed from here on. rearm does with BPF
// what will be done later.
func needed(rearm func() error) (*privileges, error) {
	permitted, err := permittedCapabilities()
	if err != nil {
		return nil, err
	}
	p := &privileges{permitted: permitted}
	for _, c := range []capability{capDACReadSearch, capSysResource} {
		if c.in(permitted) {
			p.kept = append(p.kept, c)
		}
	}
	// Since Linux 5.19 only loading needs it. Not to be told by the version:
	// distributions have taken that over into older kernels.
	if rearm() == nil && without(permitted, rearm) != nil {
		switch {
		case capBPF.in(permitted):
			p.kept = append(p.kept, capBPF)
		case capSysAdmin.in(permitted): // stands for it
			p.kept = append(p.kept, capability{capSysAdmin.name, capSysAdmin.bit, capBPF.remedy})
		}
	}
	return p, nil
}

func (c capability) in(set uint64) bool { return set&(1<<c.bit) != 0 }

func (p *privileges) set() (set uint64) {
	for _, c := range p.kept {
		set |= 1 << c.bit
	}
	return set
}

// String says what is kept, and for what.
func (p *privileges) String() string {
	if len(p.kept) == 0 {
		return "none"
	}
	texts := make([]string, len(p.kept))
	for i, c := range p.kept {
		texts[i] = c.name + " (" + c.remedy + ")"
	}
	return strings.Join(texts, ", ")
}

// drop gives up everything else, in all threads and for good. It must come before
// anything that may hang in the kernel: it waits for every thread.
func (p *privileges) drop() error {
	const lastCapability = 63
	for c := uintptr(0); c <= lastCapability; c++ {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err != nil {
			break // there are no more
		}
		if has == 0 || p.set()&(1<<c) != 0 {
			continue
		}
		// The bounding set is about what programs that are run could get, and none
		// can get anything after what follows. Without CAP_SETPCAP it has to do.
		if err := allThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0); errors.Is(err, unix.EPERM) {
			break
		} else if err != nil {
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, err)
		}
	}
	if err := allThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	header, data := capabilityData(p.set(), p.set())
	err := allThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(&data[0])), 0)
	runtime.KeepAlive(header)
	runtime.KeepAlive(data)
	if err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	return nil
}

// dropPrivileges keeps what is needed and logs it.
func (d *daemon) dropPrivileges() {
	p, err := needed(d.sensor.Refresh)
	if err == nil {
		err = p.drop()
	}
	switch {
	case errors.Is(err, unix.ENOTSUP):
		d.log.Warn("capabilities are kept: this program was built with cgo")
	case err != nil:
		d.log.Warn("capabilities are kept", "err", err)
	default:
		dropped := p.permitted &^ p.set()
		d.log.Info("capabilities that are not needed any more are dropped",
			"dropped", fmt.Sprintf("%#x", dropped), "kept", p.String())
	}
}

// findPrivileges says what run would keep.
func findPrivileges(drop bool, rearm func() error) finding {
	f := finding{What: "privileges once started", Outcome: outcomeOK}
	p, err := needed(rearm)
	switch {
	case err != nil:
		f.Outcome, f.Detail = outcomeMissing, err.Error()
	case !drop:
		f.Outcome, f.Detail, f.Remedy = outcomeOff, "all capabilities are kept", "set dropCapabilities to true"
	default:
		f.Detail = "capabilities that are kept: " + p.String()
	}
	return f
}

// allThreads makes a system call in every thread of this process, which it waits
// for. It is not to be had in programs with cgo (ENOTSUP).
//
//go:uintptrescapes
func allThreads(number, a, b, c uintptr) error {
	// prctl(2) wants zeros for what it does not use.
	if _, _, errno := syscall.AllThreadsSyscall6(number, a, b, c, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// without calls f in a thread without effective capabilities.
func without(permitted uint64, f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and if the last step fails, the thread ends here
		if err := setCapabilities(0, permitted); err != nil {
			result <- err
			return
		}
		err := f()
		if failed := setCapabilities(permitted, permitted); failed != nil {
			result <- failed
			return
		}
		runtime.UnlockOSThread()
		result <- err
	}()
	return <-result
}

// capabilityData is the form in which the kernel takes capabilities. None are
// inheritable.
func capabilityData(effective, permitted uint64) (*unix.CapUserHeader, *[2]unix.CapUserData) {
	return &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &[2]unix.CapUserData{
		{Effective: uint32(effective), Permitted: uint32(permitted)},
		{Effective: uint32(effective >> 32), Permitted: uint32(permitted >> 32)},
	}
}

// setCapabilities sets those of the thread.
func setCapabilities(effective, permitted uint64) error {
	header, data := capabilityData(effective, permitted)
	return os.NewSyscallError("capset", unix.Capset(header, &data[0]))
}

func permittedCapabilities() (uint64, error) {
	header, data := capabilityData(0, 0)
	if err := unix.Capget(header, &data[0]); err != nil {
		return 0, os.NewSyscallError("capget", err)
	}
	return uint64(data[1].Permitted)<<32 | uint64(data[0].Permitted), nil
}

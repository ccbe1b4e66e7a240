package process

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Privileges are the capabilities of this process, and which of them it still needs
// once BPF programs are attached and sockets are bound.
type Privileges struct {
	permitted uint64 // one bit for each
	kept      []capability
}

type capability struct {
	name string
	bit  uint
	use  string
}

// Capabilities that may be needed after the start.
var (
	capDACReadSearch = capability{"CAP_DAC_READ_SEARCH", unix.CAP_DAC_READ_SEARCH, "to read files and directories of other users"}
	capSysResource   = capability{"CAP_SYS_RESOURCE", unix.CAP_SYS_RESOURCE, "to be notified of stalls within 0.5 s"}
	capIPCLock       = capability{"CAP_IPC_LOCK", unix.CAP_IPC_LOCK, "to keep its memory locked"}
	capBPF           = capability{"CAP_BPF", unix.CAP_BPF, "to change the limits that the kernel watches"}
	capSysAdmin      = capability{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN, capBPF.use}
)

// FindPrivileges finds out which capabilities this process has, and which of them it
// needs from now on. It calls rearm, which does with BPF what will be done later, to see
// whether that needs CAP_BPF. lock is whether memory is to be locked.
func FindPrivileges(rearm func() error, lock bool) (*Privileges, error) {
	permitted, err := permittedCapabilities()
	if err != nil {
		return nil, err
	}
	p := &Privileges{permitted: permitted}
	for _, c := range []capability{capDACReadSearch, capSysResource, capIPCLock} {
		if c.in(permitted) && (c != capIPCLock || lock && !memlockUnlimited()) {
			p.kept = append(p.kept, c)
		}
	}
	// Since Linux 5.19, only loading programs needs CAP_BPF. Distributions have
	// backported that, so the kernel's version does not tell.
	if rearm() == nil && without(permitted, rearm) != nil {
		switch {
		case capBPF.in(permitted):
			p.kept = append(p.kept, capBPF)
		case capSysAdmin.in(permitted): // implies it
			p.kept = append(p.kept, capSysAdmin)
		}
	}
	return p, nil
}

func (c capability) in(set uint64) bool { return set&(1<<c.bit) != 0 }

func (p *Privileges) set() (set uint64) {
	for _, c := range p.kept {
		set |= 1 << c.bit
	}
	return set
}

// String lists the capabilities that are needed, and what for.
func (p *Privileges) String() string {
	if len(p.kept) == 0 {
		return "none"
	}
	texts := make([]string, len(p.kept))
	for i, c := range p.kept {
		texts[i] = c.name + " (" + c.use + ")"
	}
	return strings.Join(texts, ", ")
}

// drop gives up all other capabilities, and the right to gain any by running a program,
// in all threads and for good. It waits for every thread. In a program with cgo, it
// returns an error that wraps [errors.ErrUnsupported], and drops nothing.
func (p *Privileges) drop() error {
	const lastCapability = 63
	for c := uintptr(0); c <= lastCapability; c++ {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err != nil {
			break // the kernel has no more
		}
		if has == 0 || p.set()&(1<<c) != 0 {
			continue
		}
		// Without CAP_SETPCAP the bounding set stays. It only matters for programs that
		// this one runs, and these gain nothing after what follows.
		if err := allThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0); errors.Is(err, unix.EPERM) {
			break
		} else if err != nil {
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, err)
		}
	}
	if err := allThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
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

// DropPrivileges drops the capabilities that are no longer needed, and logs which. Where
// that fails they are kept, which is logged too. See [FindPrivileges] for rearm and
// lock.
func DropPrivileges(rearm func() error, lock bool, log *slog.Logger) {
	p, err := FindPrivileges(rearm, lock)
	if err == nil {
		err = p.drop()
	}
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		log.Warn("cannot drop capabilities: built with cgo")
	case err != nil:
		log.Warn("cannot drop capabilities", "err", err)
	default:
		log.Info("dropped capabilities", "dropped", fmt.Sprintf("%#x", p.permitted&^p.set()), "kept", p.String())
	}
}

// allThreads makes a system call in every thread of this process. It is not supported
// (ENOTSUP) in a program with cgo.
//
//go:uintptrescapes
func allThreads(number, a, b, c uintptr) error {
	// prctl(2) requires unused arguments to be 0.
	if _, _, errno := syscall.AllThreadsSyscall6(number, a, b, c, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// without calls f in a thread without effective capabilities.
func without(permitted uint64, f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // on failure, the thread ends with this goroutine
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

// capabilityData is the argument of capset(2). No capability is inheritable.
func capabilityData(effective, permitted uint64) (*unix.CapUserHeader, *[2]unix.CapUserData) {
	return &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &[2]unix.CapUserData{
		{Effective: uint32(effective), Permitted: uint32(permitted)},
		{Effective: uint32(effective >> 32), Permitted: uint32(permitted >> 32)},
	}
}

// setCapabilities sets those of the calling thread.
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

//go:build linux && (amd64 || arm64)

package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// withoutBPF ends every Remedy: it always helps.
const withoutBPF = "or run without BPF (bpf: off)"

const remedyLockdown = "boot with lockdown=integrity or none (a running kernel cannot go back), " + withoutBPF

// environment decides whether this process can use BPF at all. The kernel returns EPERM
// for nearly everything, so the reason has to be found here.
type environment struct {
	// release is the kernel's, as in uname -r.
	release string
	// caps are the effective capabilities, one bit each.
	caps uint64
	// userNamespace reports whether they only hold in a user namespace.
	userNamespace bool
	// seccomp reports whether a filter is in force.
	seccomp bool
	// lockdown is "none", "integrity", "confidentiality", or "" if not known, as in a
	// container without securityfs.
	lockdown string
	// selinux is the SELinux type of the process, such as "container_t"; "" without SELinux.
	selinux string
	// types is why kernelBTF cannot be read, nil if it can.
	types error
	// memlock is why raiseMemlock failed.
	memlock error
}

// initialUserNamespace is the inode number that the kernel gives it
// (PROC_USER_INIT_INO).
const initialUserNamespace = 0xEFFFFFFD

// readEnvironment examines the process and the kernel. What it cannot find out stays
// zero.
func readEnvironment() environment {
	var env environment
	var uname unix.Utsname
	if unix.Uname(&uname) == nil {
		env.release = unix.ByteSliceToString(uname.Release[:])
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&hdr, &data[0]) == nil {
		env.caps = uint64(data[1].Effective)<<32 | uint64(data[0].Effective)
	}
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/user", &st) == nil {
		env.userNamespace = st.Ino != initialUserNamespace
	}
	mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	env.seccomp = err == nil && mode == unix.SECCOMP_MODE_FILTER
	if b, err := os.ReadFile("/sys/kernel/security/lockdown"); err == nil {
		env.lockdown = parseLockdown(b)
	}
	if b, err := os.ReadFile("/proc/self/attr/current"); err == nil {
		env.selinux = parseSELinuxType(b)
	}
	env.types = unix.Access(kernelBTF, unix.R_OK)
	return env
}

// raiseMemlock raises RLIMIT_MEMLOCK, which BPF memory counts towards before Linux 5.11.
// It needs CAP_SYS_RESOURCE, and an error only matters if loading fails as well. cilium's
// package rlimit would do the same, but makes bpf(2) calls at every start of the program,
// even if BPF is turned off.
func raiseMemlock() error {
	infinite := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	return os.NewSyscallError("setrlimit", unix.Setrlimit(unix.RLIMIT_MEMLOCK, &infinite))
}

// parseLockdown returns the chosen one of "none [integrity] confidentiality".
func parseLockdown(b []byte) string {
	_, rest, _ := bytes.Cut(b, []byte{'['})
	mode, _, _ := bytes.Cut(rest, []byte{']'})
	return string(mode)
}

// parseSELinuxType returns the third part of a context such as
// "system_u:system_r:container_t:s0:c1,c2", "" if it is none: AppArmor shows the name of a
// profile there, and its mode in brackets.
func parseSELinuxType(b []byte) string {
	context := strings.TrimSpace(string(bytes.Trim(b, "\x00\n")))
	parts := strings.Split(context, ":")
	if len(parts) < 3 || strings.ContainsAny(context, " (/") {
		return ""
	}
	return parts[2]
}

// lockedDown reports whether the kernel lacks the helper that lockdown=confidentiality
// takes away, for all that err says: bpf_probe_read_kernel, or bpf_probe_read, which the
// library puts in its place where it finds the former missing. Every kernel with BTF has
// both otherwise.
func lockedDown(err error) bool {
	var verifier *ebpf.VerifierError
	return errors.As(err, &verifier) && slices.ContainsFunc(verifier.Log, func(line string) bool {
		return strings.Contains(line, "bpf_probe_read") &&
			(strings.Contains(line, "unknown func") || strings.Contains(line, "cannot use helper"))
	})
}

// isDenied reports whether a security module refused bpf(2). The verifier returns EACCES
// too, but says why.
func isDenied(err error) bool {
	var verifier *ebpf.VerifierError
	return errors.Is(err, unix.EACCES) && (!errors.As(err, &verifier) || len(verifier.Log) == 0)
}

// missingCaps returns the names of the capabilities that are needed and absent.
// CAP_SYS_ADMIN includes both.
func (env environment) missingCaps() []string {
	has := func(capability int) bool { return env.caps&(1<<capability) != 0 }
	var missing []string
	if has(unix.CAP_SYS_ADMIN) {
		return nil
	}
	if !has(unix.CAP_BPF) {
		missing = append(missing, "CAP_BPF")
	}
	if !has(unix.CAP_PERFMON) {
		missing = append(missing, "CAP_PERFMON")
	}
	return missing
}

// explain turns an error of loading or attaching into the one to show, and a remedy. It
// drops the library's guess at the reason for EPERM, which is always RLIMIT_MEMLOCK.
func (env environment) explain(err error) (error, string) {
	refused, denied := errors.Is(err, unix.EPERM), isDenied(err)
	brief := err
	if refused {
		brief = unix.EPERM
	} else if denied {
		brief = unix.EACCES
	}
	if missing := env.missingCaps(); missing != nil {
		return fmt.Errorf("lacks %s: %w", strings.Join(missing, " and "), brief),
			"needs CAP_BPF and CAP_PERFMON (before Linux 5.8 CAP_SYS_ADMIN); add them, run privileged, " + withoutBPF
	}
	var verifier *ebpf.VerifierError
	switch {
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("bpf(2) is missing: %w", unix.ENOSYS),
			"use a kernel built with CONFIG_BPF_SYSCALL, allow bpf in the seccomp profile, " + withoutBPF
	case env.lockdown == "confidentiality":
		return fmt.Errorf("kernel lockdown is %q: %w", env.lockdown, brief), remedyLockdown
	case lockedDown(err):
		return fmt.Errorf("kernel %s lets no program read its memory, as with lockdown=confidentiality: %w", env.release, err), remedyLockdown
	case denied && env.selinux != "":
		return fmt.Errorf("SELinux refuses bpf(2) to type %s: %w", env.selinux, brief),
			"set seLinuxOptions.type: spc_t in the pod, else allow " + env.selinux + " the class bpf (ausearch -m avc shows what was refused), " + withoutBPF
	case denied:
		return fmt.Errorf("a security module or seccomp filter refuses bpf(2): %w", brief),
			"allow bpf in the profile of SELinux, AppArmor or seccomp (the kernel's log and ausearch -m avc show what was refused), " + withoutBPF
	case refused && env.userNamespace:
		return fmt.Errorf("capabilities only hold in a user namespace: %w", brief),
			"run in the initial user namespace (not rootless), " + withoutBPF
	case refused && env.seccomp:
		return fmt.Errorf("bpf(2) refused, most likely by the seccomp filter: %w", brief),
			"allow bpf in the seccomp profile, " + withoutBPF
	case refused && env.memlock != nil:
		return fmt.Errorf("bpf(2) refused, with RLIMIT_MEMLOCK limited (%w): %w", env.memlock, brief),
			"raise LimitMEMLOCK or add CAP_SYS_RESOURCE (only needed before Linux 5.11), " + withoutBPF
	case refused:
		return fmt.Errorf("kernel %s refuses bpf(2): %w", env.release, brief),
			"look for a security module that forbids it, " + withoutBPF
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("kernel %s: %w (%w)", env.release, err, errors.ErrUnsupported),
			"use a newer kernel, " + withoutBPF
	case errors.As(err, &verifier):
		return fmt.Errorf("verifier of kernel %s: %w", env.release, err),
			"report this with the log that nodeprobe preflight prints, " + withoutBPF
	}
	return err, "report this with the kernel's version, " + withoutBPF
}

// remedyNoTypes is the remedy for kernel types that cannot be read from path.
func (env environment) remedyNoTypes(path string) string {
	switch {
	case path != "":
		return fmt.Sprintf("replace %s by a BTF file for kernel %s, leave it out, %s", path, env.release, withoutBPF)
	case errors.Is(env.types, unix.EACCES):
		return fmt.Sprintf("let nodeprobe read %s, which AppArmor or SELinux forbids, %s", kernelBTF, withoutBPF)
	}
	return fmt.Sprintf("use a kernel built with CONFIG_DEBUG_INFO_BTF (%s shows no %s), %s", env.release, kernelBTF, withoutBPF)
}

//go:build linux && (amd64 || arm64)

package bpf

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

func TestExplain(t *testing.T) {
	const both = 1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON
	// What the library makes of any EPERM.
	eperm := fmt.Errorf("load program: %w (MEMLOCK may be too low, consider rlimit.RemoveMemlock)", unix.EPERM)
	for name, tt := range map[string]struct {
		env  environment
		err  error
		want string // part of Err
		help string // part of Remedy
		is   error
	}{
		"no capability": {
			env:  environment{},
			err:  eperm,
			want: "lacks CAP_BPF and CAP_PERFMON: operation not permitted",
			help: "add them",
			is:   os.ErrPermission,
		},
		"CAP_BPF alone": {
			env:  environment{caps: 1 << unix.CAP_BPF},
			err:  eperm,
			want: "lacks CAP_PERFMON:",
			help: "add them",
			is:   os.ErrPermission,
		},
		"no capability, other error": {
			env:  environment{},
			err:  ebpf.ErrNotSupported,
			want: "lacks CAP_BPF and CAP_PERFMON: not supported",
			help: "add them",
			is:   ebpf.ErrNotSupported,
		},
		"user namespace": {
			env:  environment{caps: both, userNamespace: true, seccomp: true},
			err:  eperm,
			want: "user namespace: operation not permitted",
			help: "initial user namespace",
			is:   os.ErrPermission,
		},
		"seccomp": {
			env:  environment{caps: 1 << unix.CAP_SYS_ADMIN, seccomp: true},
			err:  eperm,
			want: "seccomp filter: operation not permitted",
			help: "allow bpf in the seccomp profile",
			is:   os.ErrPermission,
		},
		"no system call": {
			env:  environment{caps: both},
			err:  fmt.Errorf("map events: %w", unix.ENOSYS),
			want: "bpf(2) is missing",
			help: "CONFIG_BPF_SYSCALL",
			is:   unix.ENOSYS,
		},
		"lockdown": {
			env:  environment{caps: both, lockdown: "confidentiality"},
			err:  errors.New("unknown func bpf_probe_read_kernel"),
			want: `lockdown is "confidentiality": unknown func`,
			help: "lockdown=integrity",
		},
		"lockdown that no file shows": {
			env:  environment{caps: both, release: "6.1"},
			err:  &ebpf.VerifierError{Cause: unix.EINVAL, Log: []string{"unknown func bpf_probe_read_kernel#113", "processed 9 insns"}},
			want: "kernel 6.1 lets no program read its memory, as with lockdown=confidentiality",
			help: "lockdown=integrity",
			is:   unix.EINVAL,
		},
		"lockdown that no file shows, as the library puts it": { // of Debian's 6.1
			env:  environment{caps: both, release: "6.1"},
			err:  &ebpf.VerifierError{Cause: unix.EINVAL, Log: []string{"; int probe()", "unknown func bpf_probe_read#4"}},
			want: "as with lockdown=confidentiality",
			help: "lockdown=integrity",
			is:   unix.EINVAL,
		},
		"lockdown that no file shows, in newer words": {
			env:  environment{caps: both},
			err:  &ebpf.VerifierError{Cause: unix.EINVAL, Log: []string{"program of this type cannot use helper bpf_probe_read_kernel#113"}},
			want: "lockdown=confidentiality",
			help: "lockdown=integrity",
		},
		"another helper is missing": {
			env:  environment{caps: both, release: "5.10"},
			err:  &ebpf.VerifierError{Cause: unix.EINVAL, Log: []string{"R1 of bpf_probe_read_kernel#113 is fine", "unknown func bpf_timer_init#169"}},
			want: "verifier of kernel 5.10: ",
			help: "log",
		},
		"SELinux": {
			env:  environment{caps: both, selinux: "container_t", seccomp: true, memlock: unix.EPERM},
			err:  fmt.Errorf("map events: map create: %w", unix.EACCES),
			want: "SELinux refuses bpf(2) to type container_t: permission denied",
			help: "spc_t",
			is:   os.ErrPermission,
		},
		"SELinux, at a program": {
			env:  environment{caps: both, selinux: "nodeprobe_t"},
			err:  fmt.Errorf("program task_newtask: %w", &ebpf.VerifierError{Cause: unix.EACCES}),
			want: "SELinux refuses bpf(2) to type nodeprobe_t",
			help: "allow nodeprobe_t the class bpf",
			is:   os.ErrPermission,
		},
		"EACCES, without SELinux": {
			env:  environment{caps: both},
			err:  unix.EACCES,
			want: "a security module or seccomp filter refuses bpf(2): permission denied",
			help: "AppArmor",
			is:   os.ErrPermission,
		},
		"the verifier, with SELinux": {
			env:  environment{caps: both, selinux: "spc_t", release: "6.1"},
			err:  &ebpf.VerifierError{Cause: unix.EACCES, Log: []string{"R0 !read_ok"}},
			want: "verifier of kernel 6.1: ",
			help: "log",
			is:   unix.EACCES,
		},
		"SELinux does not answer with EPERM": {
			env:  environment{caps: both, selinux: "spc_t", seccomp: true},
			err:  eperm,
			want: "seccomp filter: operation not permitted",
			help: "allow bpf in the seccomp profile",
			is:   os.ErrPermission,
		},
		"locked memory": {
			env:  environment{caps: both, memlock: unix.EPERM},
			err:  eperm,
			want: "RLIMIT_MEMLOCK limited",
			help: "CAP_SYS_RESOURCE",
			is:   os.ErrPermission,
		},
		"refused": {
			env:  environment{caps: both, release: "6.1"},
			err:  eperm,
			want: "kernel 6.1 refuses bpf(2): operation not permitted",
			help: "security module",
			is:   os.ErrPermission,
		},
		"old kernel": {
			env:  environment{caps: both, release: "5.4"},
			err:  fmt.Errorf("map events: %w", ebpf.ErrNotSupported),
			want: "kernel 5.4: map events: not supported",
			help: "newer kernel",
			is:   errors.ErrUnsupported,
		},
		"verifier": {
			env:  environment{caps: both, release: "6.1"},
			err:  &ebpf.VerifierError{Cause: unix.EACCES, Log: []string{"R0 !read_ok"}},
			want: "verifier of kernel 6.1: ",
			help: "log",
			is:   unix.EACCES,
		},
		"anything else": {
			env:  environment{caps: both},
			err:  unix.ENOMEM,
			want: unix.ENOMEM.Error(),
			help: "report",
			is:   unix.ENOMEM,
		},
	} {
		t.Run(name, func(t *testing.T) {
			err, remedy := tt.env.explain(tt.err)
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q, want %q", err, tt.want)
			}
			if errors.Is(err, os.ErrPermission) && tt.env.memlock == nil && strings.Contains(err.Error(), "MEMLOCK") {
				t.Errorf("misleading error %q", err)
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("error %q does not wrap %q", err, tt.is)
			}
			if !strings.Contains(remedy, tt.help) || !strings.HasSuffix(remedy, withoutBPF) {
				t.Errorf("remedy %q, want %q", remedy, tt.help)
			}
		})
	}
}

func TestParseLockdown(t *testing.T) {
	for in, want := range map[string]string{
		"[none] integrity confidentiality\n": "none",
		"none [integrity] confidentiality\n": "integrity",
		"none integrity [confidentiality]":   "confidentiality",
		"":                                   "",
		"none":                               "",
		"none [integrity":                    "integrity",
	} {
		if got := parseLockdown([]byte(in)); got != want {
			t.Errorf("parseLockdown(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestParseSELinuxType(t *testing.T) {
	for in, want := range map[string]string{
		"system_u:system_r:container_t:s0:c1,c2\x00": "container_t",
		"unconfined_u:unconfined_r:spc_t:s0\n":       "spc_t",
		"system_u:system_r:init_t":                   "init_t",
		"docker-default (enforce)\n":                 "",
		"unconfined\n":                               "",
		":k8s:cri:containerd.default (complain)":     "",
		"/usr/sbin/a:b:c":                            "",
		"":                                           "",
		"kernel":                                     "",
	} {
		if got := parseSELinuxType([]byte(in)); got != want {
			t.Errorf("parseSELinuxType(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestRemedyNoTypes(t *testing.T) {
	for name, tt := range map[string]struct {
		env  environment
		path string
		want string
	}{
		"none":         {environment{types: unix.ENOENT, release: "4.19"}, "", "CONFIG_DEBUG_INFO_BTF (4.19 shows no " + kernelBTF},
		"forbidden":    {environment{types: unix.EACCES}, "", "let nodeprobe read " + kernelBTF},
		"a wrong file": {environment{types: unix.EACCES}, "/etc/btf", "replace /etc/btf"},
	} {
		if got := tt.env.remedyNoTypes(tt.path); !strings.Contains(got, tt.want) || !strings.HasSuffix(got, withoutBPF) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

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

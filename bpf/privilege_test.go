//go:build linux && (amd64 || arm64)

package bpf

import (
	"encoding/json"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// outcome is a Hook, to be told across processes.
type outcome struct {
	Name, Err, Remedy string
	Attached          bool
}

// helperHooks prints the outcome of Open. Its argument is the errno that a
// seccomp filter shall answer bpf(2) with, if any.
func helperHooks(args []string) error {
	if len(args) > 0 {
		errno, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		if err := denyBPF(uint32(errno)); err != nil {
			return err
		}
	}
	s := Open(Options{})
	if s.lacks(Pressure) == nil {
		if err := s.Watch([]Watch{{Figure: MemAvailable}, {Figure: PIDs, Total: 1}}); err != nil {
			return err
		}
	}
	var outcomes []outcome
	for _, h := range s.Hooks() {
		o := outcome{Name: h.Name, Remedy: h.Remedy, Attached: h.Attached}
		if h.Err != nil {
			o.Err = h.Err.Error()
		}
		outcomes = append(outcomes, o)
	}
	if err := json.NewEncoder(os.Stdout).Encode(outcomes); err != nil {
		return err
	}
	return s.Close()
}

// denyBPF makes bpf(2) fail in all threads.
func denyBPF(errno uint32) error {
	bpf := uint32(unix.SYS_BPF)
	filter := []unix.SockFilter{
		// The number of the system call is the first word of struct seccomp_data.
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: bpf, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | errno},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if e != 0 {
		return os.NewSyscallError("seccomp", e)
	}
	return nil
}

func TestPrivileges(t *testing.T) {
	open(t, Tasks, OOM, Reclaim, BlockIO).Close()
	needRoot(t)
	nobody := func(caps ...uintptr) *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, AmbientCaps: caps}
	}
	for name, tt := range map[string]struct {
		attr     *syscall.SysProcAttr
		args     []string
		attached bool
		err      string
		remedy   string
	}{
		"root":           {attached: true},
		"both":           {attr: nobody(unix.CAP_BPF, unix.CAP_PERFMON), attached: true},
		"CAP_SYS_ADMIN":  {attr: nobody(unix.CAP_SYS_ADMIN), attached: true},
		"no":             {attr: nobody(), err: "lacks CAP_BPF and CAP_PERFMON: operation not permitted", remedy: "add them"},
		"CAP_BPF":        {attr: nobody(unix.CAP_BPF), err: "lacks CAP_PERFMON: ", remedy: "add them"},
		"CAP_PERFMON":    {attr: nobody(unix.CAP_PERFMON), err: "lacks CAP_BPF: operation not permitted", remedy: "add them"},
		"seccomp EPERM":  {args: []string{strconv.Itoa(int(unix.EPERM))}, err: "seccomp filter: operation not permitted", remedy: "seccomp profile"},
		"seccomp ENOSYS": {args: []string{strconv.Itoa(int(unix.ENOSYS))}, err: "bpf(2) is missing: function not implemented", remedy: "seccomp profile"},
		"seccomp EACCES": {args: []string{strconv.Itoa(int(unix.EACCES))}, err: "security module or seccomp filter refuses bpf(2): permission denied", remedy: "seccomp"},
		"user namespace": {
			attr: &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWUSER,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
			},
			err:    "capabilities only hold in a user namespace: operation not permitted",
			remedy: "initial user namespace",
		},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := helper(t, "hooks", tt.args...)
			cmd.SysProcAttr = tt.attr
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			var outcomes []outcome
			if err := json.Unmarshal(out, &outcomes); err != nil {
				t.Fatalf("%v in %q", err, out)
			}
			if len(outcomes) != len(programs()) {
				t.Errorf("%d hooks", len(outcomes))
			}
			for _, o := range outcomes {
				if o.Name == "bpf_timer/tick" && strings.HasPrefix(o.Err, "no bpf_timer/tick in kernel ") {
					continue // before 5.15 nobody has it
				}
				if o.Attached != tt.attached || !strings.Contains(o.Err, tt.err) || !strings.Contains(o.Remedy, tt.remedy) {
					t.Errorf("%+v, want error %q and remedy %q", o, tt.err, tt.remedy)
				}
			}
		})
	}
}

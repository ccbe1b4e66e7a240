package process

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Only capabilities that this process has are kept, and CAP_BPF only if the kernel
// requires it for what is done later.
func TestFindPrivileges(t *testing.T) {
	permitted, err := permittedCapabilities()
	if err != nil {
		t.Fatal(err)
	}
	if !capBPF.in(permitted) && os.Getenv("NODEPROBE_REQUIRE") != "1" {
		t.Skip("needs CAP_BPF")
	}
	effective := func() uint64 {
		header, data := capabilityData(0, 0)
		if err := unix.Capget(header, &data[0]); err != nil {
			t.Error(err)
		}
		return uint64(data[1].Effective)<<32 | uint64(data[0].Effective)
	}
	old := func() error { // a kernel before Linux 5.19
		if !capBPF.in(effective()) {
			return unix.EPERM
		}
		return nil
	}
	for _, test := range []struct {
		name  string
		rearm func() error
		want  bool
	}{
		{"only loading needs it", func() error { return nil }, false},
		{"everything needs it", old, true},
		{"it does not work anyway", func() error { return errors.New("no timers") }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, err := FindPrivileges(test.rearm, false)
			if err != nil {
				t.Fatal(err)
			}
			if got := capBPF.in(p.set()); got != test.want || got != strings.Contains(p.String(), "CAP_BPF (") {
				t.Errorf("kept: %s", p)
			}
			if p.set()&^p.permitted != 0 {
				t.Errorf("%#x is kept of %#x", p.set(), p.permitted)
			}
		})
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if got := effective(); got != permitted {
		t.Errorf("%#x is effective afterwards, want %#x", got, permitted)
	}
	if got := (&Privileges{}).String(); got != "none" {
		t.Errorf("nothing is kept: %q", got)
	}
}

package process

import (
	"errors"
	"strings"
	"testing"
)

func TestCheckOvercommit(t *testing.T) {
	for _, test := range []struct {
		setting, release string
		safe             bool
	}{
		{"0", "4.20.17", false},
		{"0", "5.1.21-050121-generic", false},
		{"0", "5.2.0", true},
		{"0", "6.1.0-56-cloud-amd64", true},
		{"1", "4.20.17", true},
		{"1", "6.18.44", true},
		{"2", "4.20.17", false},
		{"2", "6.1.0-56-cloud-amd64", false},
		{"2", "6.11.11", false},
		{"2", "6.12-rc1", true},
		{"2", "6.18.44", true},
		{"2", "7.0", true},
	} {
		err := checkOvercommit(test.setting, test.release)
		if (err == nil) != test.safe || err != nil && !errors.Is(err, ErrOvercommit) {
			t.Errorf("%s, Linux %s: %v", test.setting, test.release, err)
		}
	}
	if err := checkOvercommit("1", "Linux"); err == nil {
		t.Error("a release without a number")
	}
	reason, remedy := LockRemedy(checkOvercommit("2", "6.1.0"))
	if reason != "not safe to lock memory: vm.overcommit_memory is 2, on Linux 6.1" || !strings.HasPrefix(remedy, "set vm.overcommit_memory to 1") {
		t.Errorf("%q, %q", reason, remedy)
	}
}

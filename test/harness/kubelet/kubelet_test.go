package kubelet

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
)

func TestKeep(t *testing.T) {
	sysctls := t.TempDir()
	must.OK(t, os.MkdirAll(filepath.Join(sysctls, "vm"), 0o755))
	setting := filepath.Join(sysctls, "vm/overcommit_memory")
	write := func(file, text string) {
		t.Helper()
		must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	}
	for _, test := range []struct {
		name, exists string   // below the temporary directory
		others       string   // what somebody else makes meanwhile
		left         []string // in the end
	}{
		{"nothing there", "", "", nil},
		{"directory there", "kubelet/plugins", "", []string{"kubelet", "kubelet/plugins"}},
		{"somebody else's", "kubelet", "kubelet/other", []string{"kubelet", "kubelet/other"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			top := t.TempDir()
			must.OK(t, os.MkdirAll(filepath.Join(top, test.exists), 0o755))
			write(setting, "0\n")
			restore := must.Get(keep(sysctls, filepath.Join(top, "kubelet/plugins")))(t)
			write(setting, "1\n")
			must.OK(t, os.MkdirAll(filepath.Join(top, "kubelet/plugins"), 0o755))
			must.OK(t, os.MkdirAll(filepath.Join(top, test.others), 0o755))
			for range 2 {
				must.OK(t, restore())
			}
			if value, err := os.ReadFile(setting); err != nil || string(value) != "0\n" {
				t.Errorf("setting is %q, %v", value, err)
			}
			for _, path := range []string{"kubelet", "kubelet/plugins", "kubelet/other"} {
				_, err := os.Stat(filepath.Join(top, path))
				want := false
				for _, left := range test.left {
					want = want || left == path
				}
				if got := err == nil; got != want {
					t.Errorf("%s exists: %v, want %v", path, got, want)
				}
			}
		})
	}
}

// What the caller has mounted at the root directory stays.
func TestUnmount(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	bind := func() {
		t.Helper()
		must.OK(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	}
	wantMounts := func(want int) {
		t.Helper()
		if got, err := mounts(dir); got != want || err != nil {
			t.Errorf("%d mounts, %v, want %d", got, err, want)
		}
	}
	wantMounts(0)
	bind()
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	bind()
	wantMounts(2)
	for range 2 {
		must.Note(t, unmount(dir, 1))
		wantMounts(1)
	}
}

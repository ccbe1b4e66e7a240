package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"
	"golang.org/x/sys/unix"
)

func TestPath(t *testing.T) {
	group := probetest.NewCgroup(t, "nodeprobe-test-path")
	root := filepath.Dir(group.Dir)
	inner := filepath.Join(group.Dir, "a b")
	probetest.Must(t, os.Mkdir(inner, 0o755))
	t.Cleanup(func() { os.Remove(inner) })
	var st unix.Stat_t
	id := func(dir string) uint64 {
		t.Helper()
		probetest.Must(t, unix.Stat(dir, &st))
		return st.Ino
	}
	ids := map[string]uint64{"/": id(root), "/nodeprobe-test-path": id(group.Dir), "/nodeprobe-test-path/a b": id(inner)}

	ways := map[string]func(uint64) (string, error){
		"either": func(id uint64) (string, error) { return Path("/sys/fs/cgroup", id) },
		"walk":   func(id uint64) (string, error) { return byWalk(root, id) },
		"handle": func(id uint64) (string, error) { return byHandle(root, id) },
	}
	check := func(t *testing.T, way func(uint64) (string, error), id uint64, want string, wantErr error) {
		t.Helper()
		got, err := way(id)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
			probetest.Lacking(t, "CAP_DAC_READ_SEARCH: %v", err)
		}
		if got != want || !errors.Is(err, wantErr) {
			t.Errorf("%d: got %q, %v; want %q, %v", id, got, err, want, wantErr)
		}
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			for want, id := range ids {
				check(t, way, id, want, nil)
			}
		})
	}
	probetest.Must(t, os.Remove(inner))
	for name, way := range ways {
		t.Run(name+" when gone", func(t *testing.T) {
			for _, id := range []uint64{ids["/nodeprobe-test-path/a b"], 0, 1 << 40, 1<<64 - 1} {
				check(t, way, id, "", fs.ErrNotExist)
			}
		})
	}
	// Only part of the hierarchy is there to see.
	if got, err := byHandle(group.Dir, ids["/"]); err == nil {
		t.Logf("the root of the hierarchy seen from below is %q", got)
	}
	if _, err := Path(t.TempDir(), 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no hierarchy: got %v, want fs.ErrNotExist", err)
	}
}

func BenchmarkPath(b *testing.B) {
	dir, _ := Memory("/sys/fs/cgroup")
	for name, way := range map[string]func(string, uint64) (string, error){"handle": byHandle, "walk": byWalk} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				way(dir, 1<<40) // none: the dearest
			}
		})
	}
}

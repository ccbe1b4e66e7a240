package process

import (
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/probe/cgroup"
)

func TestOwnCgroup(t *testing.T) {
	const none = math.MaxInt64
	for _, test := range []struct {
		name, file string
		files      map[string]string
		want       Cgroup
	}{
		{
			"a service", "0::/system.slice/nodeprobe.service\n",
			map[string]string{
				"memory.stat": "", "system.slice/memory.max": "max\n", "system.slice/memory.min": "0\n", "system.slice/memory.low": "0\n",
				"system.slice/nodeprobe.service/memory.max": "67108864\n", "system.slice/nodeprobe.service/memory.min": "25165824\n", "system.slice/nodeprobe.service/memory.low": "0\n",
			},
			Cgroup{Path: "/system.slice/nodeprobe.service", Version: cgroup.V2, Limit: 64 << 20, Unprotected: "/system.slice"},
		},
		{
			"a service in no slice", "0::/nodeprobe.service\n",
			map[string]string{"memory.stat": "", "nodeprobe.service/memory.max": "max\n", "nodeprobe.service/memory.min": "max\n", "nodeprobe.service/memory.low": "0\n"},
			Cgroup{Path: "/nodeprobe.service", Version: cgroup.V2, Limit: none, Min: none},
		},
		{
			"a part of the protection is taken away", "0::/a/b\n",
			map[string]string{"memory.stat": "", "a/memory.min": "4096\n", "a/b/memory.min": "8192\n", "a/memory.low": "8192\n", "a/b/memory.low": "4096\n"},
			Cgroup{Path: "/a/b", Version: cgroup.V2, Limit: none, Min: 4096, Low: 4096, Unprotected: "/a"},
		},
		{
			"a limit further out", "0::/kubepods.slice/pod.slice/container.scope\n",
			map[string]string{
				"memory.stat": "", "kubepods.slice/memory.max": "1000000\n", "kubepods.slice/pod.slice/memory.max": "2000000\n",
				"kubepods.slice/pod.slice/container.scope/memory.max": "max\n",
			},
			Cgroup{Path: "/kubepods.slice/pod.slice/container.scope", Version: cgroup.V2, Limit: 1e6},
		},
		{
			"a cgroup namespace", "0::/\n",
			map[string]string{"memory.stat": "", "memory.current": "1\n", "memory.max": "67108864\n", "memory.min": "0\n", "memory.low": "67108864\n"},
			Cgroup{Path: "/", Version: cgroup.V2, Limit: 64 << 20, Low: 64 << 20},
		},
		{"the root", "0::/\n", map[string]string{"memory.stat": ""}, Cgroup{Path: "/", Version: cgroup.V2, Limit: none}},
		{
			"v1", "9:name=systemd:/x\n5:cpu,memory:/a\n0::/y\n",
			map[string]string{"memory/memory.usage_in_bytes": "1\n", "memory/memory.limit_in_bytes": "9223372036854771712\n", "memory/a/memory.limit_in_bytes": "67108864\n"},
			Cgroup{Path: "/a", Version: cgroup.V1, Limit: 64 << 20},
		},
		{
			"a container on v1, whose own cgroup is mounted as the root", "4:memory:/kubepods/burstable/pod1/2\n",
			map[string]string{"memory/memory.usage_in_bytes": "1\n", "memory/memory.limit_in_bytes": "67108864\n"},
			Cgroup{Path: "/kubepods/burstable/pod1/2", Version: cgroup.V1, Limit: 64 << 20},
		},
		{
			"v1 without a limit", "4:memory:/\n",
			map[string]string{"memory/memory.usage_in_bytes": "1\n", "memory/memory.limit_in_bytes": "9223372036854771712\n"},
			Cgroup{Path: "/", Version: cgroup.V1, Limit: none},
		},
		{
			"no number", "0::/a\n",
			map[string]string{"memory.stat": "", "a/memory.max": "much\n", "a/memory.min": ""},
			Cgroup{Path: "/a", Version: cgroup.V2, Limit: none},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := ownCgroup(cgroupTree(t, test.file, test.files))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What is locked must fit into the cgroup, with room.
func TestLockBound(t *testing.T) {
	for _, test := range []struct{ limit, cgroup, want int64 }{
		{48 << 20, math.MaxInt64, 48 << 20},
		{48 << 20, 64 << 20, 48 << 20},
		{48 << 20, 48 << 20, 36 << 20},
		{math.MaxInt64, 64 << 20, 48 << 20},
		{0, 64 << 20, 0},
	} {
		if got := (&Cgroup{Limit: test.cgroup}).LockBound(test.limit); got != test.want {
			t.Errorf("%d in a cgroup of %d: %d, want %d", test.limit, test.cgroup, got, test.want)
		}
	}
}

// A lower bound than the configured one is logged, once and with what it comes from.
func TestBoundLock(t *testing.T) {
	own, err := OwnCgroup()
	if err != nil {
		t.Skip(err)
	}
	for limit, lines := range map[int64]int{0: 0, math.MaxInt64: 1} {
		var b strings.Builder
		if got, want := BoundLock(limit, slog.New(slog.NewTextHandler(&b, nil))), own.LockBound(limit); got != want {
			t.Errorf("%d: %d, want %d", limit, got, want)
		}
		if strings.Count(b.String(), "level=INFO") != lines {
			t.Errorf("%d: logged %q", limit, b.String())
		}
	}
}

func TestNoCgroup(t *testing.T) {
	for name, test := range map[string]struct {
		file  string
		files map[string]string
	}{
		"no memory controller": {"0::/a\n", nil},
		"of another hierarchy": {"0::/a\n", map[string]string{"memory/memory.usage_in_bytes": "1\n"}},
		"no lines":             {"memory\n", map[string]string{"memory.stat": ""}},
	} {
		if got, err := ownCgroup(cgroupTree(t, test.file, test.files)); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	_, cgroupfs := cgroupTree(t, "", map[string]string{"memory.stat": ""})
	if got, err := ownCgroup(filepath.Join(t.TempDir(), "none"), cgroupfs); err == nil {
		t.Errorf("no file: %+v", got)
	}
}

// cgroupTree returns a file like /proc/self/cgroup and a directory like /sys/fs/cgroup.
func cgroupTree(t *testing.T, text string, files map[string]string) (file, cgroupfs string) {
	t.Helper()
	dir := t.TempDir()
	file, cgroupfs = filepath.Join(dir, "cgroup"), filepath.Join(dir, "fs")
	all := map[string]string{file: text}
	for name, content := range files {
		all[filepath.Join(cgroupfs, name)] = content
	}
	for name, content := range all {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return file, cgroupfs
}

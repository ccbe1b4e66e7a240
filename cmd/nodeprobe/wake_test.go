package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
)

// A victim is named as well as can be: by pod and container, by the path of its
// cgroup, or by what is left when that is gone.
func TestVictim(t *testing.T) {
	root, _ := probe.MemoryCgroupVersion("/sys")
	top, err := os.MkdirTemp(root, "nodeprobe-test-") //nolint:usetesting // a cgroup must be made in cgroupfs
	if err != nil {
		if os.Getenv("NODEPROBE_REQUIRE") == "1" {
			t.Fatal(err)
		}
		t.Skip(err) // needs root
	}
	t.Cleanup(func() {
		if err := os.Remove(top); err != nil {
			t.Error(err)
		}
	})
	const pod = "/kubepods/burstable/pod0a1b2c3d-0000-4000-8000-00000000abcd"
	container := pod + "/" + strings.Repeat("0123456789abcdef", 4)
	event := func(path string) *bpf.Event {
		dir := top
		for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
			dir = filepath.Join(dir, name)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			made := dir
			t.Cleanup(func() {
				if err := os.Remove(made); err != nil {
					t.Error(err)
				}
			})
		}
		var st syscall.Stat_t
		if err := syscall.Stat(dir, &st); err != nil {
			t.Fatal(err)
		}
		return &bpf.Event{PID: 7, Comm: [16]byte{'h', 'o', 'g'}, CgroupID: st.Ino, Scope: bpf.ScopeCgroup}
	}
	prefix := "/" + filepath.Base(top)
	d := &daemon{cgroupfs: "/sys/fs/cgroup"}
	for _, test := range []struct {
		name  string
		event *bpf.Event
		want  []any
	}{
		{
			"container", event(container),
			[]any{"cgroup", prefix + container, "pod", "0a1b2c3d-0000-4000-8000-00000000abcd", "container", filepath.Base(container)},
		},
		{"service", event("/system.slice/a.service"), []any{"cgroup", prefix + "/system.slice/a.service"}},
		{"gone", &bpf.Event{PID: 7, Comm: [16]byte{'h', 'o', 'g'}, CgroupID: 1 << 60, Scope: bpf.ScopeCgroup}, []any{"cgroup", uint64(1 << 60)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := append([]any{"pid", uint32(7), "name", "hog", "scope", "cgroup"}, test.want...)
			if got := d.victim(test.event); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

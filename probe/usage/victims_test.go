package usage

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/internal/printable"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/cgroup"
)

// A victim is named as well as can be: by pod and container, by the path of its
// cgroup, or by what is left when that is gone.
func TestVictim(t *testing.T) {
	root, _ := cgroup.Memory("/sys/fs/cgroup")
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
	event := func(path string, scope bpf.Scope) *bpf.Event {
		dir := top
		for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
			dir = filepath.Join(dir, name)
			if err := os.Mkdir(dir, 0o755); errors.Is(err, fs.ErrExist) {
				continue
			} else if err != nil {
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
		return &bpf.Event{PID: 7, Comm: [16]byte{'h', 'o', 'g'}, CgroupID: st.Ino, Scope: scope}
	}
	rootfs := t.TempDir()
	names := func(c cgroup.Container) cgroup.PodName { return c.Name(rootfs) }
	if err := os.MkdirAll(filepath.Join(rootfs, "var/log/pods/team-a_web-0_1a1b2c3d-0000-4000-8000-00000000abcd/server"), 0o755); err != nil {
		t.Fatal(err)
	}
	named := func(comm string, e *bpf.Event) *bpf.Event {
		e.Comm = [16]byte{}
		copy(e.Comm[:], comm)
		return e
	}
	prefix := "/" + filepath.Base(top)
	for _, test := range []struct {
		name, scope     string
		event           *bpf.Event
		attrs           []any
		reason, message string
	}{
		{
			"container", "cgroup", event(container, bpf.ScopeCgroup),
			[]any{"cgroup", prefix + container, "pod", "0a1b2c3d-0000-4000-8000-00000000abcd", "container", filepath.Base(container)},
			"OOMKilling", "Memory cgroup out of memory: Killed process 7 (hog), pod: 0a1b2c3d-0000-4000-8000-00000000abcd, container: " + filepath.Base(container),
		},
		{
			"container of a named pod", "cgroup", event(strings.Replace(container, "0a1b2c3d", "1a1b2c3d", 1), bpf.ScopeCgroup),
			[]any{
				"cgroup", prefix + strings.Replace(container, "0a1b2c3d", "1a1b2c3d", 1), "pod", "1a1b2c3d-0000-4000-8000-00000000abcd", "container", filepath.Base(container),
				"podNamespace", "team-a", "podName", "web-0", "containerName", "server",
			},
			"OOMKilling", "Memory cgroup out of memory: Killed process 7 (hog), pod: team-a/web-0 (1a1b2c3d-0000-4000-8000-00000000abcd), container: server (" + filepath.Base(container) + ")",
		},
		{
			"service", "node", event("/system.slice/a.service", bpf.ScopeNode),
			[]any{"cgroup", prefix + "/system.slice/a.service"},
			"SystemOOM", "System OOM encountered, victim process: hog, pid: 7, cgroup: " + prefix + "/system.slice/a.service",
		},
		{
			"what a terminal would obey", "cgroup", named("a\nb\x1b[31m", event("/user.slice/\x1b[2J\u202e\xff", bpf.ScopeCgroup)),
			[]any{"cgroup", strconv.Quote(prefix + "/user.slice/\x1b[2J\u202e\xff")},
			"OOMKilling", `Memory cgroup out of memory: Killed process 7 ("a\nb\x1b[31m"), cgroup: "` + prefix + `/user.slice/\x1b[2J\u202e\xff"`,
		},
		{
			"pod of no name", "cgroup", event("/kubepods/pod\x9b0m", bpf.ScopeCgroup),
			[]any{"cgroup", strconv.Quote(prefix + "/kubepods/pod\x9b0m"), "pod", `"\x9b0m"`, "container", ""},
			"OOMKilling", `Memory cgroup out of memory: Killed process 7 (hog), pod: "\x9b0m"`,
		},
		{
			"gone", "unknown", &bpf.Event{PID: 7, Comm: [16]byte{'h', 'o', 'g'}, CgroupID: 1 << 60},
			[]any{"cgroup", uint64(1 << 60)},
			"OOMKilling", "Out of memory: Killed process 7 (hog)",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := identify(&cgroup.Finder{Procfs: "/proc", Cgroupfs: "/sys/fs/cgroup"}, names, test.event)
			want := append([]any{"pid", uint32(7), "name", printable.Text(test.event.Name()), "scope", test.scope}, test.attrs...)
			if got := v.attrs(); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			if reason, message := v.event(); reason != test.reason || message != test.message {
				t.Errorf("event %s: %s, want %s: %s", reason, message, test.reason, test.message)
			}
		})
	}
}

// Every kill is reported once: from the kernel's event if there is one, else from
// vmstat's count.
func TestVictims(t *testing.T) {
	event := &bpf.Event{Kind: bpf.OOMKill, PID: 7, Comm: [16]byte{'h', 'o', 'g'}, CgroupID: 1 << 60}
	const named, one, two = "Out of memory: Killed process 7 (hog)",
		"1 process was killed for lack of memory; the kernel did not report which",
		"2 processes were killed for lack of memory; the kernel did not report which"
	// A step is an event, or a count of vmstat after a while.
	type step struct {
		event bool
		after time.Duration
		count int64 // -1 is absent
		want  []string
	}
	for _, test := range []struct {
		name   string
		hooked bool
		steps  []step
	}{
		{"kills before the first count", true, []step{{count: 100}, {after: time.Hour, count: 100}}},
		{"event then count", true, []step{{count: 5}, {event: true, want: []string{named}}, {count: 6}, {after: time.Hour, count: 6}}},
		{"count then event", true, []step{{count: 5}, {count: 6}, {event: true, want: []string{named}}, {after: time.Hour, count: 6}}},
		{"lost event", true, []step{{count: 5}, {after: time.Second, count: 6}, {after: time.Second, count: 6, want: []string{one}}, {after: time.Hour, count: 6}}},
		{"late event after a lost one", true, []step{
			{count: 5},
			{count: 6},
			{after: time.Second, count: 6, want: []string{one}},
			{after: time.Hour, count: 7},
			{event: true, want: []string{named}},
			{after: time.Hour, count: 7},
		}},
		{"two lost of three", true, []step{
			{count: 5},
			{event: true, want: []string{named}},
			{after: time.Second, count: 8},
			{after: 10 * time.Second, count: 8, want: []string{two}},
			{after: time.Hour, count: 8},
		}},
		{"one more comes meanwhile", true, []step{
			{count: 5},
			{count: 6},
			{after: 10 * time.Second, count: 7, want: []string{one}},
			{event: true, want: []string{named}},
			{after: time.Hour, count: 7},
		}},
		{"victims that were not counted", true, []step{
			{count: 5}, {event: true, want: []string{named}}, {count: 5}, {after: time.Second, count: 6}, {after: time.Second, count: 6, want: []string{one}},
		}},
		{"no hook", false, []step{{count: 5}, {after: time.Second, count: 6, want: []string{one}}, {after: time.Second, count: 8, want: []string{two}}}},
		{"unreadable meanwhile", true, []step{{count: 5}, {count: -1}, {event: true, want: []string{named}}, {count: 6}, {after: time.Hour, count: 6}}},
		{"clock set back", true, []step{{count: 5}, {count: 6}, {after: -time.Hour, count: 6}, {after: 2 * time.Hour, count: 6, want: []string{one}}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			v := NewVictims(VictimsConfig{
				Procfs: "/proc", Sysfs: "/sys", Rootfs: t.TempDir(), Hooked: test.hooked, Logger: slog.New(slog.DiscardHandler),
				Record: func(kind, _, message string) {
					if kind != "Warning" {
						t.Errorf("type %q", kind)
					}
					got = append(got, message)
				},
			})
			now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			for i, s := range test.steps {
				got = nil
				now = now.Add(s.after)
				if s.event {
					v.Killed(event)
				} else {
					v.Counted(&probe.Snapshot{Time: now, OOMKills: probe.Count{Value: uint64(max(0, s.count)), OK: s.count >= 0}})
				}
				if diff := cmp.Diff(s.want, got); diff != "" {
					t.Errorf("step %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

// A disk that hangs costs the names, and delays events by one timeout: at most one
// lookup waits for the disk.
func TestNamesOfAHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var lookups atomic.Int32
		find := boundedNames(func(c cgroup.Container) cgroup.PodName {
			lookups.Add(1)
			<-hang
			return cgroup.PodName{Pod: c.ID}
		})
		begin := time.Now()
		for range 3 {
			if got := find(cgroup.Container{ID: "a"}); got != (cgroup.PodName{}) {
				t.Errorf("got %v", got)
			}
		}
		if took := time.Since(begin); took != nameTimeout || lookups.Load() != 1 {
			t.Errorf("%d lookups took %s", lookups.Load(), took)
		}
		close(hang)
		synctest.Wait()
		if got := find(cgroup.Container{ID: "b"}); got.Pod != "b" {
			t.Errorf("when it answers again: %v", got)
		}
	})
}

package mounts

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/probe"
)

// What happens to the mounts is said once, as an Event where somebody has to look.
func TestMountReporter(t *testing.T) {
	root := probe.Mount{ID: 1, Parent: 1, Major: 8, Minor: 1, MountPoint: "/", FSType: "ext4", Source: "/dev/sda1", Options: "rw", SuperOptions: "rw"}
	data := probe.Mount{ID: 2, Parent: 1, Major: 8, Minor: 2, MountPoint: "/data", FSType: "ext4", Source: "/dev/sda2", Options: "rw", SuperOptions: "rw"}
	odd := probe.Mount{ID: 3, Parent: 1, Major: 0, Minor: 50, MountPoint: "/data/\n", FSType: "fuse.\x1b[2J", Source: "\u202e", Options: "rw", SuperOptions: "rw"}
	with := func(m probe.Mount, superOptions string) probe.Mount {
		m.SuperOptions = superOptions
		return m
	}
	const broken = "rw,emergency_ro"
	var logs strings.Builder
	var events []string
	r := &Reporter{Log: slog.New(slog.NewTextHandler(&logs, nil)), Record: func(_, reason, message string) {
		events = append(events, reason+": "+message)
	}}
	for _, step := range []struct {
		name            string
		nodefs, imagefs probe.Mount
		events          []string
		log             string
	}{
		{"not known", probe.Mount{}, probe.Mount{}, nil, ""},
		{"all is well", data, root, nil, ""},
		{"nothing new", data, root, nil, ""},
		{"an error", with(data, broken), root, []string{"FilesystemIsReadOnly: Filesystem nodefs (ext4 of /dev/sda2 at /data) takes no writes: emergency_ro"}, "filesystem is read-only"},
		{"still", with(data, broken), root, nil, ""},
		{"not known for now", probe.Mount{}, root, nil, ""},
		{"as it was", with(data, broken), root, nil, ""},
		{"mended", data, root, []string{"FilesystemIsNotReadOnly: Filesystem nodefs (ext4 of /dev/sda2 at /data) takes writes again"}, "takes writes again"},
		{"vanished", root, root, nil, "another filesystem is mounted"},
		{"both are one", with(root, "ro"), with(root, "ro"), []string{"FilesystemIsReadOnly: Filesystem nodefs (ext4 of /dev/sda1 at /) takes no writes: ro"}, "filesystem is read-only"},
		{"names that a terminal would obey", with(root, "ro"), odd, []string{`FilesystemIsNotReadOnly: Filesystem imagefs ("fuse.\x1b[2J" of "\u202e" at "/data/\n") takes writes again`}, "takes writes again"},
	} {
		logs.Reset()
		events = nil
		r.Observe(&probe.Snapshot{NodeFs: probe.Filesystem{Mount: step.nodefs}, ImageFs: probe.Filesystem{Mount: step.imagefs}})
		if diff := cmp.Diff(step.events, events); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
		if got := logs.String(); (step.log == "") != (got == "") || !strings.Contains(got, step.log) {
			t.Errorf("%s: logged %q, want %q", step.name, got, step.log)
		}
	}
}

// A filesystem that gave up is said to, although its mount is as it was; and so is the end
// of it, as another is mounted there.
func TestGaveUp(t *testing.T) {
	data := probe.Mount{ID: 2, Parent: 1, Major: 8, Minor: 2, MountPoint: "/data", FSType: "xfs", Source: "/dev/sda2", Options: "rw", SuperOptions: "rw"}
	var events []string
	r := &Reporter{Log: slog.New(slog.DiscardHandler), Record: func(_, reason, message string) {
		events = append(events, reason+": "+message)
	}}
	for _, gaveUp := range []bool{false, true, true, false} {
		fs := probe.Filesystem{Mount: data, GaveUp: gaveUp}
		r.Observe(&probe.Snapshot{NodeFs: fs, ImageFs: fs})
	}
	want := []string{
		"FilesystemIsReadOnly: Filesystem nodefs (xfs of /dev/sda2 at /data) takes no writes: it gave up after an error",
		"FilesystemIsNotReadOnly: Filesystem nodefs (xfs of /dev/sda2 at /data) takes writes again",
	}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

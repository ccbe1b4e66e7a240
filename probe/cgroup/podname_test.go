package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"
)

func TestPodName(t *testing.T) {
	id, other := strings.Repeat("ab", 32), strings.Repeat("cd", 32)
	const uid = "0a1b2c3d-0000-4000-8000-00000000abcd"
	const podDir = "/var/log/pods/team-a_web-0_" + uid
	link := "/var/log/containers/web-0_team-a_server-" + id + ".log"
	for _, test := range []struct {
		name  string
		files []string // or directories, which is the same here
		of    Container
		want  PodName
	}{
		{"no kubelet", nil, Container{uid, id}, PodName{}},
		{"link", []string{link}, Container{uid, id}, PodName{"team-a", "web-0", "server"}},
		{"link of a container that is no pod's by its cgroup", []string{link}, Container{"", id}, PodName{"team-a", "web-0", "server"}},
		{"link and one of two", []string{link, podDir + "/server", podDir + "/sidecar"}, Container{uid, id}, PodName{"team-a", "web-0", "server"}},
		{"no link yet", []string{podDir + "/server"}, Container{uid, id}, PodName{"team-a", "web-0", "server"}},
		{"no link yet, one of two", []string{podDir + "/server", podDir + "/sidecar"}, Container{uid, id}, PodName{"team-a", "web-0", ""}},
		{"pod", []string{podDir + "/server"}, Container{uid, ""}, PodName{"team-a", "web-0", ""}},
		{"others", []string{podDir + "/server", link}, Container{strings.Replace(uid, "0a", "0b", 1), other}, PodName{}},
		{"neither", []string{podDir + "/server", link}, Container{}, PodName{}},
		{"something else", []string{"/var/log/pods/a_" + uid, "/var/log/containers/a-" + id + ".log"}, Container{uid, id}, PodName{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			for _, file := range test.files {
				probetest.Must(t, os.MkdirAll(filepath.Join(root, file), 0o755))
			}
			if got := test.of.Name(root); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

package cgroup

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	const (
		uid      = "0123abcd-4567-89ef-0123-456789abcdef"
		underUID = "0123abcd_4567_89ef_0123_456789abcdef"
		static   = "6b3a0d1c9c2a4c7f8e5d4c3b2a190807"
	)
	id, other := strings.Repeat("0a", 32), strings.Repeat("f1", 32)
	const burstable = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
	for path, want := range map[string]Container{
		// cgroupfs
		"/kubepods/burstable/pod" + uid + "/" + id:             {uid, id},
		"/kubepods/besteffort/pod" + static + "/" + id:         {static, id},
		"/kubepods/pod" + uid + "/" + id:                       {uid, id}, // guaranteed
		"/kubepods/pod" + uid + "/crio-" + id:                  {uid, id},
		"/kubepods/pod" + uid:                                  {uid, ""},
		"/kubepods/pod" + uid + "/" + id + "/init.scope":       {uid, id},
		"/kubepods/podweb-of-a-manifest/" + id:                 {"web-of-a-manifest", id},
		"/custom/root/kubepods/burstable/pod" + uid + "/" + id: {uid, id}, // cgroupRoot
		"kubepods/pod" + uid + "/" + id:                        {uid, id},

		// systemd
		burstable + underUID + ".slice/cri-containerd-" + id + ".scope":                      {uid, id},
		burstable + underUID + ".slice/crio-" + id + ".scope":                                {uid, id},
		burstable + underUID + ".slice/crio-conmon-" + id + ".scope":                         {uid, id},
		burstable + underUID + ".slice/crio-" + id + ".scope/container":                      {uid, id},
		burstable + underUID + ".slice/docker-" + id + ".scope/init.scope":                   {uid, id},
		burstable + underUID + ".slice/" + id:                                                {uid, id},
		burstable + underUID + ".slice":                                                      {uid, ""},
		burstable + static + ".slice/cri-containerd-" + id + ".scope":                        {static, id},
		"/kubepods.slice/kubepods-pod" + underUID + ".slice/cri-containerd-" + id + ".scope": {uid, id},
		"/custom.slice/custom-kubepods.slice/custom-kubepods-besteffort.slice/custom-kubepods-besteffort-pod" + underUID + ".slice/docker-" + id + ".scope": {uid, id},
		// A runtime that was not told of systemd.
		"/system.slice/containerd.service/kubepods-burstable-pod" + underUID + ".slice:cri-containerd:" + id: {uid, id},

		// A node that is a container itself (kind), and containers in a pod.
		"/docker/" + other + "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + underUID + ".slice/cri-containerd-" + id + ".scope": {uid, id},
		"/docker/" + other + "/kubelet/kubepods/pod" + uid:                                    {uid, ""},
		"/kubepods/pod" + uid + "/" + id + "/docker/" + other:                                 {uid, id},
		"/kubepods/pod" + uid + "/" + id + "/kubepods/pod" + static + "/" + other:             {uid, id},
		"/kubepods/pod" + uid + "/" + id + "/system.slice/docker-" + other + ".scope/payload": {uid, id},

		// No pod's.
		"/docker/" + id:                                                  {"", id},
		"/system.slice/docker-" + id + ".scope":                          {"", id},
		"/machine.slice/libpod-" + id + ".scope/container":               {"", id},
		"/docker/" + id + "/docker/" + other:                             {"", id},
		"/podman/podxyz/" + id:                                           {"", id},
		"/user.slice/podlike-pod1.slice/cri-containerd-" + id + ".scope": {"", id},
	} {
		if got, ok := Parse(path); got != want || !ok {
			t.Errorf("%s:\ngot  %+v, %t\nwant %+v", path, got, ok, want)
		}
	}
	for _, path := range []string{
		"", "/", "/kubepods", "/kubepods.slice", "/kubepods/burstable", "/kubepods.slice/kubepods-burstable.slice",
		"/system.slice/sshd.service", "/podman", "/pod" + uid, "/user.slice/user-pod1.slice", "/kubepods/pod",
		"/docker/" + id[1:], "/docker/" + id + "0", "/docker/" + strings.ToUpper(id), "/x/kubepods-.slice",
	} {
		if got, ok := Parse(path); ok || got != (Container{}) {
			t.Errorf("%s: got %+v, want none", path, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	id := strings.Repeat("0a", 32)
	f.Add("/kubepods/burstable/pod0123abcd-4567-89ef-0123-456789abcdef/" + id)
	f.Add("/kubepods.slice/kubepods-pod0123abcd_4567.slice/crio-" + id + ".scope")
	f.Add("/a/kubepods-pod1.slice:cri-containerd:" + id)
	f.Fuzz(func(t *testing.T, path string) {
		c, ok := Parse(path)
		switch {
		case ok != (c != Container{}):
			t.Errorf("both %+v and %t", c, ok)
		case c.ID != "" && (len(c.ID) != 64 || !strings.Contains(path, c.ID)):
			t.Errorf("ID %q is not in the path", c.ID)
		case strings.Contains(c.PodUID, "/"):
			t.Errorf("UID %q is not of one component", c.PodUID)
		}
	})
}

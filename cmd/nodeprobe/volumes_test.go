package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe/volume"
	"github.com/nodeprobe/nodeprobe/status/node"
)

func TestVolumeFacts(t *testing.T) {
	volumes := []volume.Volume{{Driver: "d", Handle: "a"}}
	inUse := []v1.UniqueVolumeName{"kubernetes.io/csi/d^a"}
	for _, test := range []struct {
		name string
		in   volume.Snapshot
		want *node.Volumes
	}{
		{"not known", volume.Snapshot{Err: errors.New("no answer")}, nil},
		{"none", volume.Snapshot{Known: true}, &node.Volumes{InUse: []v1.UniqueVolumeName{}}},
		{"one", volume.Snapshot{Known: true, InUse: volumes}, &node.Volumes{InUse: inUse}},
		{"one, perhaps more", volume.Snapshot{Known: true, InUse: volumes, Err: errors.New("broken")}, &node.Volumes{InUse: inUse, Partial: true}},
	} {
		if d := cmp.Diff(test.want, volumeFacts(test.in)); d != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, d)
		}
	}
}

func TestVolumeLimitsConfig(t *testing.T) {
	_, p, err := parseConfig("f", []byte(header+`volumeLimits:
  disk.example.com: 0
  Other.example.com: 12
  attachable-volumes-aws-ebs: "39"
`))
	if err != nil {
		t.Fatal(err)
	}
	want := node.VolumeLimits{"attachable-volumes-csi-disk.example.com": 0, "attachable-volumes-csi-Other.example.com": 12, "attachable-volumes-aws-ebs": 39}
	if d := cmp.Diff(want, p.volumeLimits); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// A snapshot shows the Node with the volumes and the limits that are configured; a
// volume that cannot be told is an error.
func TestSnapshotVolumes(t *testing.T) {
	const dir = "root/var/lib/kubelet/plugins/kubernetes.io/csi/d/1/"
	table := "1 1 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:2 / /" + strings.TrimPrefix(dir, "root/") + "globalmount rw - ext4 /dev/sdb rw\n"
	for _, test := range []struct {
		name, data string
		code       int
		want       []v1.UniqueVolumeName
		err        string
	}{
		{"one", `{"driverName":"d","volumeHandle":"a"}`, 0, []v1.UniqueVolumeName{"kubernetes.io/csi/d^a"}, ""},
		{"one that cannot be told", "x", exitIncomplete, nil, "invalid character 'x' looking for beginning of value"},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := newTree(t, map[string]string{"proc/1/mountinfo": table, dir + "vol_data.json": test.data})
			config := writeConfig(t, "volumeLimits: {d: 5}\n")
			got := nodeprobe(t, append(tr.flags(), "snapshot", "--for", "0s", "--config", config, "-o", "json")...)
			var out snapshotOutput
			if err := json.Unmarshal([]byte(got.stdout), &out); err != nil || got.code != test.code {
				t.Fatalf("%v, %+v", err, got)
			}
			if d := cmp.Diff(test.want, out.Node.Status.VolumesInUse); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			for _, list := range []v1.ResourceList{out.Node.Status.Capacity, out.Node.Status.Allocatable} {
				if limit := list["attachable-volumes-csi-d"]; limit.Value() != 5 {
					t.Errorf("limit %s", limit.String())
				}
			}
			told := ""
			for _, e := range out.Snapshot.Errors {
				told += e.Source + ": " + e.Error
			}
			if want := "volumes: read volume from " + tr.dir + "/" + dir + "vol_data.json: " + test.err; test.err == "" && told != "" || test.err != "" && told != want {
				t.Errorf("errors %q, want %q", told, want)
			}
		})
	}
}

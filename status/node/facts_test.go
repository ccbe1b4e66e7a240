package node

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/probe/volume"
	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

func TestPlainVersion(t *testing.T) {
	for text, want := range map[string]string{
		"1.7.2": "1.7.2", "v1.7.2": "1.7.2", "2.0.0-rc.1": "2.0.0-rc.1", "1.6.20~ds1": "1.6.20", "1.31.0+dev": "1.31.0+dev",
		"1.31": "1.31", "main": "Unknown", "": "Unknown",
	} {
		if got := plainVersion(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestRuntimeFacts(t *testing.T) {
	yes, no := true, false
	now := time.Now()
	read := func(s *cri.Snapshot, calls ...cri.Call) *cri.Snapshot {
		for _, c := range calls {
			s.Reads[c].Time = now
		}
		return s
	}
	ready := cri.Status{
		Runtime: cri.Condition{Type: "RuntimeReady", Status: true}, Network: cri.Condition{Type: "NetworkReady", Status: true},
	}
	for name, test := range map[string]struct {
		snapshot *cri.Snapshot
		most     int
		want     *Runtime
		unready  string
	}{
		"no runtime":      {snapshot: &cri.Snapshot{}},
		"no answer":       {&cri.Snapshot{Endpoint: "unix:///s"}, 50, &Runtime{}, "container runtime status check may not have completed yet\nnetwork state unknown"},
		"no images":       {read(&cri.Snapshot{Endpoint: "unix:///s", LastReady: now, Status: ready}, cri.CallStatus, cri.CallListImages), 50, &Runtime{Images: []v1.ContainerImage{}, Handlers: []v1.NodeRuntimeHandler{}}, ""},
		"images unlisted": {read(&cri.Snapshot{Endpoint: "unix:///s", LastReady: now, Status: ready, Version: cri.Version{RuntimeName: "containerd", RuntimeVersion: "1.6.20~ds1"}}, cri.CallStatus, cri.CallVersion), 50, &Runtime{Version: "containerd://1.6.20", Handlers: []v1.NodeRuntimeHandler{}}, ""},
		"everything": {
			read(&cri.Snapshot{
				Endpoint: "unix:///s", LastReady: now,
				Status: cri.Status{
					Runtime: ready.Runtime, Network: cri.Condition{Type: "NetworkReady", Reason: "NetworkPluginNotReady", Message: "cni plugin not initialized"},
					Handlers: []cri.Handler{{Name: ""}, {Name: "kata", RecursiveReadOnlyMounts: true}}, Features: cri.Features{Reported: true, SupplementalGroupsPolicy: true},
				},
				Version: cri.Version{RuntimeName: "cri-o", RuntimeVersion: "1.31.0"},
				Images: []cri.Image{
					{ID: "a", Size: 30, Digests: []string{"r@sha256:1", "r@sha256:2"}, Tags: []string{"r:1", "r:2", "r:3", "r:4"}},
					{ID: "b", Size: 20},
					{ID: "c", Size: 10, Tags: []string{"c:1"}},
				},
			}, cri.CallStatus, cri.CallVersion, cri.CallListImages), 2,
			&Runtime{
				Version: "cri-o://1.31.0",
				Images: []v1.ContainerImage{
					{Names: []string{"r@sha256:1", "r@sha256:2", "r:1", "r:2", "r:3"}, SizeBytes: 30},
					{Names: []string{}, SizeBytes: 20},
				},
				Handlers: []v1.NodeRuntimeHandler{
					{Name: "", Features: &v1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &no, UserNamespaces: &no}},
					{Name: "kata", Features: &v1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &yes, UserNamespaces: &no}},
				},
				Features: &v1.NodeFeatures{SupplementalGroupsPolicy: &yes},
			},
			"container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni plugin not initialized",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := RuntimeFacts(test.snapshot, test.most)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			apitest.Diff(t, "unready", test.unready, apitest.ErrorText(test.snapshot.Unready()))
		})
	}
}

// All images, none, and what lies between.
func TestNodeImagesAreCapped(t *testing.T) {
	images := make([]cri.Image, 60)
	for i := range images {
		images[i] = cri.Image{ID: fmt.Sprint(i), Size: uint64(100 - i)}
	}
	for most, want := range map[int]int{-1: 60, 0: 0, 50: 50, 100: 60} {
		got := nodeImages(images, most)
		if len(got) != want || got == nil || want > 0 && got[0].SizeBytes != 100 {
			t.Errorf("at most %d: %d images", most, len(got))
		}
	}
}

func TestVolumeFacts(t *testing.T) {
	volumes := []volume.Volume{{Driver: "d", Handle: "a"}}
	inUse := []v1.UniqueVolumeName{"kubernetes.io/csi/d^a"}
	for _, test := range []struct {
		name string
		in   volume.Snapshot
		want *Volumes
	}{
		{"not known", volume.Snapshot{Err: errors.New("no answer")}, nil},
		{"none", volume.Snapshot{Known: true}, &Volumes{InUse: []v1.UniqueVolumeName{}}},
		{"one", volume.Snapshot{Known: true, InUse: volumes}, &Volumes{InUse: inUse}},
		{"one, perhaps more", volume.Snapshot{Known: true, InUse: volumes, Err: errors.New("broken")}, &Volumes{InUse: inUse, Partial: true}},
	} {
		if d := cmp.Diff(test.want, VolumeFacts(test.in)); d != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, d)
		}
	}
}

package node

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

func names(texts string) []v1.UniqueVolumeName {
	var list []v1.UniqueVolumeName
	for text := range strings.FieldsSeq(texts) {
		list = append(list, v1.UniqueVolumeName(text))
	}
	return list
}

// Nothing is left out for want of knowledge: who attaches volumes would detach it.
func TestVolumesInUse(t *testing.T) {
	const a, b, foreign = "kubernetes.io/csi/d^a", "kubernetes.io/csi/d^b", "kubernetes.io/iscsi/x"
	for _, test := range []struct {
		name      string
		had, want string
		facts     *Volumes
	}{
		{"not known yet", a, a, nil},
		{"none", "", "", &Volumes{}},
		{"some, in order, once", "", a + " " + b, &Volumes{InUse: names(strings.Join([]string{b, a, b}, " "))}},
		{"one is gone", a + " " + b, b, &Volumes{InUse: names(b)}},
		{"the last is gone", a, "", &Volumes{}},
		{"one is unknown", a + " " + b, a + " " + b, &Volumes{InUse: names(b), Partial: true}},
		{"all are unknown", b + " " + a, a + " " + b, &Volumes{Partial: true}},
		{"one of another plugin", foreign + " " + a, b + " " + foreign, &Volumes{InUse: names(b)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			node := &v1.Node{Status: v1.NodeStatus{VolumesInUse: names(test.had)}}
			given := names(test.want)
			if test.facts != nil {
				given = append([]v1.UniqueVolumeName(nil), test.facts.InUse...)
			}
			set(t, node, volumesInUse(&Facts{Volumes: test.facts}))
			var got []string
			for _, name := range node.Status.VolumesInUse {
				got = append(got, string(name))
			}
			apitest.Diff(t, "in use", test.want, strings.Join(got, " "))
			if test.facts != nil {
				apitest.Diff(t, "the facts afterwards", given, append([]v1.UniqueVolumeName(nil), test.facts.InUse...))
			}
		})
	}
	apitest.Diff(t, "name", v1.UniqueVolumeName("kubernetes.io/csi/disk.example.com^vol-1"), VolumeInUse("disk.example.com", "vol-1"))
}

func TestVolumeLimits(t *testing.T) {
	for _, test := range []struct {
		name                          string
		had, hadToGive                map[string]string
		limits                        *VolumeLimits
		wantCapacity, wantAllocatable map[string]string
	}{
		{
			name: "none is given", had: map[string]string{"attachable-volumes-aws-ebs": "39"}, hadToGive: map[string]string{"attachable-volumes-aws-ebs": "30"},
			wantCapacity: map[string]string{"attachable-volumes-aws-ebs": "39"}, wantAllocatable: map[string]string{"attachable-volumes-aws-ebs": "30"},
		},
		{
			name: "on a fresh node", limits: &VolumeLimits{"attachable-volumes-csi-d": 12},
			wantCapacity: map[string]string{"attachable-volumes-csi-d": "12"}, wantAllocatable: map[string]string{"attachable-volumes-csi-d": "12"},
		},
		{
			name: "one has changed, another belongs to others",
			had:  map[string]string{"attachable-volumes-csi-d": "3", "attachable-volumes-x": "1", "cpu": "4"}, hadToGive: map[string]string{"attachable-volumes-csi-d": "1", "cpu": "3"},
			limits:       &VolumeLimits{"attachable-volumes-csi-d": 0},
			wantCapacity: map[string]string{"attachable-volumes-csi-d": "0", "attachable-volumes-x": "1", "cpu": "4"}, wantAllocatable: map[string]string{"attachable-volumes-csi-d": "0", "cpu": "3"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			node := &v1.Node{Status: v1.NodeStatus{Capacity: apitest.Resources(test.had), Allocatable: apitest.Resources(test.hadToGive)}}
			set(t, node, volumeLimits(&Facts{VolumeLimits: test.limits}))
			apitest.Diff(t, "capacity", test.wantCapacity, quantities(node.Status.Capacity))
			apitest.Diff(t, "allocatable", test.wantAllocatable, quantities(node.Status.Allocatable))
		})
	}
}

// A limit is not reserved from, and the pass that follows does not change it.
func TestVolumeLimitsInThePipeline(t *testing.T) {
	facts := machineFacts(apitest.Epoch)
	facts.VolumeLimits = &VolumeLimits{"attachable-volumes-csi-d": 12}
	facts.Volumes = &Volumes{InUse: names("kubernetes.io/csi/d^a")}
	cfg := Config{NodeName: apitest.NodeName, Addresses: testAddresses(), Resources: testResources()}
	node := &v1.Node{}
	for range 2 {
		if err := New(cfg).pass(&facts, apitest.Epoch).apply(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		apitest.Diff(t, "capacity", "12", quantities(node.Status.Capacity)["attachable-volumes-csi-d"])
		apitest.Diff(t, "allocatable", "12", quantities(node.Status.Allocatable)["attachable-volumes-csi-d"])
		apitest.Diff(t, "in use", names("kubernetes.io/csi/d^a"), node.Status.VolumesInUse)
	}
}

// The hashes are those of sha1sum(1).
func TestVolumeLimitName(t *testing.T) {
	for driver, want := range map[string]v1.ResourceName{
		"ebs.csi.aws.com":                               "attachable-volumes-csi-ebs.csi.aws.com",
		strings.Repeat("a", 39):                         "attachable-volumes-csi-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
		strings.Repeat("a", 40):                         "attachable-volumes-csi-aaaaaaaaaaaaaaaaaaaaaaaa56559418dc7908c",
		"com.example.storage.a-driver-with-a-long-name": "attachable-volumes-csi-com.example.storage.a-d1b456df0ae00cfa0",
	} {
		if got := VolumeLimitName(driver); got != want {
			t.Errorf("%s: got %s, want %s", driver, got, want)
		}
	}
}

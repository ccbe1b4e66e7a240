package cri

import (
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What differs from the plain case, which TestSampleReadsEverything has.
func TestReplies(t *testing.T) {
	runtimeOK, networkOK := condition("RuntimeReady", true, "", ""), condition("NetworkReady", true, "", "")
	withFeatures := statusReply(runtimeOK, networkOK)
	withFeatures.Features = &runtimeapi.RuntimeFeatures{UserNamespacesHostNetwork: true}
	withHandlers := statusReply(runtimeOK, networkOK)
	withHandlers.RuntimeHandlers = []*runtimeapi.RuntimeHandler{{Name: "b"}, {Name: "a"}}
	ready := Status{Runtime: Condition{Type: "RuntimeReady", Status: true}, Network: Condition{Type: "NetworkReady", Status: true}}
	for name, test := range map[string]struct {
		call  Call
		reply proto.Message
		want  Snapshot
		err   error // nil if it makes sense
	}{
		"empty version": {call: CallVersion, reply: &runtimeapi.VersionResponse{}},
		"first condition counts": {
			call: CallStatus, reply: statusReply(runtimeOK, networkOK, condition("RuntimeReady", false, "second", "")),
			want: Snapshot{Status: ready},
		},
		"features": {
			call: CallStatus, reply: withFeatures,
			want: Snapshot{Status: Status{Runtime: ready.Runtime, Network: ready.Network, Features: Features{Reported: true, UserNamespacesHostNetwork: true}}},
		},
		"handlers without features": {
			call: CallStatus, reply: withHandlers,
			want: Snapshot{Status: Status{Runtime: ready.Runtime, Network: ready.Network, Handlers: []Handler{{Name: "a"}, {Name: "b"}}}},
		},
		"other conditions": {call: CallStatus, reply: statusReply(condition("A", true, "", ""), condition("B", true, "", ""))},
		"one condition":    {call: CallStatus, reply: statusReply(runtimeOK), err: errMissing},
		"no status":        {call: CallStatus, reply: &runtimeapi.StatusResponse{}, err: errMissing},
		"no images":        {call: CallListImages, reply: &runtimeapi.ListImagesResponse{}},
		"empty image": {
			call: CallListImages, reply: &runtimeapi.ListImagesResponse{Images: []*runtimeapi.Image{{}}},
			want: Snapshot{Images: []Image{{}}},
		},
		"no filesystems": {call: CallImageFsInfo, reply: &runtimeapi.ImageFsInfoResponse{}},
		"empty filesystem": {
			call: CallImageFsInfo, reply: &runtimeapi.ImageFsInfoResponse{ContainerFilesystems: []*runtimeapi.FilesystemUsage{{}}},
			want: Snapshot{ContainerFilesystems: []Filesystem{{}}},
		},
		"largest figures": {
			call: CallImageFsInfo,
			reply: &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{
				{UsedBytes: &runtimeapi.UInt64Value{Value: math.MaxUint64}},
			}},
			want: Snapshot{ImageFilesystems: []Filesystem{{Bytes: Usage{math.MaxUint64, true}}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, x := newScript(t, Config{})
			x.set(test.call, says(test.reply))
			err := s.fetch(t.Context(), test.call)
			got := s.current
			got.Endpoint, got.LastReady = "", test.want.LastReady
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if !errors.Is(err, test.err) {
				t.Errorf("error %v; want %v", err, test.err)
			}
		})
	}
}

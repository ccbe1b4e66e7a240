package cri

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeprobe/nodeprobe/probe/cri"
)

// fill gives a message random content, in every field that its type has, those
// that the product does not read among them, and in some that it does not have.
func fill(random *rand.Rand, m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if random.IntN(4) == 0 {
			continue
		}
		switch {
		case field.IsMap():
			for range random.IntN(3) {
				m.Mutable(field).Map().Set(protoreflect.ValueOfString(text(random)).MapKey(), protoreflect.ValueOfString(text(random)))
			}
		case field.IsList():
			list := m.Mutable(field).List()
			for range random.IntN(5) {
				if field.Kind() == protoreflect.MessageKind {
					item := list.NewElement()
					fill(random, item.Message())
					list.Append(item)
				} else {
					list.Append(scalar(random, field))
				}
			}
		case field.Kind() == protoreflect.MessageKind:
			fill(random, m.Mutable(field).Message())
		default:
			m.Set(field, scalar(random, field))
		}
	}
	if random.IntN(3) == 0 {
		unknown := protowire.AppendTag(nil, 1000, protowire.BytesType)
		unknown = protowire.AppendBytes(unknown, []byte{0xff})
		unknown = protowire.AppendTag(unknown, 1001, protowire.Fixed64Type)
		m.SetUnknown(protowire.AppendFixed64(unknown, random.Uint64()))
	}
}

func scalar(random *rand.Rand, field protoreflect.FieldDescriptor) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text(random))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(random.IntN(2) == 0)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(number(random))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(number(random)))
	}
	panic("no random value for " + string(field.FullName()))
}

// number often is one of a few, so that images are of one size.
func number(random *rand.Rand) uint64 {
	if random.IntN(2) == 0 {
		return uint64(random.IntN(3))
	}
	return random.Uint64() >> random.IntN(64)
}

func text(random *rand.Rand) string {
	words := []string{"RuntimeReady", "NetworkReady", "runc", "sha256:0", "ä", "\x00", "%41", "\n", " ", "日本", "/var/lib"}
	var b strings.Builder
	for range random.IntN(3) {
		b.WriteString(words[random.IntN(len(words))])
	}
	if random.IntN(50) == 0 {
		b.WriteString(strings.Repeat("x", random.IntN(1<<16)))
	}
	return b.String()
}

func randomAnswers(random *rand.Rand) answers {
	a := answers{
		version: &runtimeapi.VersionResponse{}, status: &runtimeapi.StatusResponse{},
		images: &runtimeapi.ListImagesResponse{}, filesystems: &runtimeapi.ImageFsInfoResponse{},
	}
	for _, m := range []proto.Message{a.version, a.status, a.images, a.filesystems} {
		fill(random, m.ProtoReflect())
	}
	if random.IntN(2) == 0 {
		if a.status.Status == nil {
			a.status.Status = &runtimeapi.RuntimeStatus{}
		}
		a.status.Status.Conditions = append(a.status.Status.Conditions,
			&runtimeapi.RuntimeCondition{Type: "RuntimeReady", Status: random.IntN(2) == 0, Message: text(random)},
			&runtimeapi.RuntimeCondition{Type: "NetworkReady", Status: random.IntN(2) == 0, Reason: text(random)})
	}
	return a
}

// expected reads the generated types in the way of the kubelet. Times of reads
// are left out.
func expected(a answers) cri.Snapshot {
	s := cri.Snapshot{Version: cri.Version{
		RuntimeName: a.version.GetRuntimeName(), RuntimeVersion: a.version.GetRuntimeVersion(),
		RuntimeAPIVersion: a.version.GetRuntimeApiVersion(),
	}}
	if conditions := a.status.GetStatus().GetConditions(); len(conditions) >= 2 {
		find := func(name string) (c cri.Condition) {
			if i := slices.IndexFunc(conditions, func(c *runtimeapi.RuntimeCondition) bool { return c.GetType() == name }); i >= 0 {
				c = cri.Condition{
					Type: name, Status: conditions[i].GetStatus(),
					Reason: conditions[i].GetReason(), Message: conditions[i].GetMessage(),
				}
			}
			return c
		}
		s.Status.Runtime, s.Status.Network = find(runtimeapi.RuntimeReady), find(runtimeapi.NetworkReady)
		for _, h := range a.status.GetRuntimeHandlers() {
			s.Status.Handlers = append(s.Status.Handlers, cri.Handler{
				Name:                    h.GetName(),
				RecursiveReadOnlyMounts: h.GetFeatures().GetRecursiveReadOnlyMounts(),
				UserNamespaces:          h.GetFeatures().GetUserNamespaces(),
			})
		}
		slices.SortStableFunc(s.Status.Handlers, func(a, b cri.Handler) int { return cmp.Compare(a.Name, b.Name) })
		s.Status.Features = cri.Features{
			Reported:                  a.status.GetFeatures() != nil,
			SupplementalGroupsPolicy:  a.status.GetFeatures().GetSupplementalGroupsPolicy(),
			UserNamespacesHostNetwork: a.status.GetFeatures().GetUserNamespacesHostNetwork(),
		}
	}
	for _, i := range a.images.GetImages() {
		s.Images = append(s.Images, cri.Image{ID: i.GetId(), Tags: i.GetRepoTags(), Digests: i.GetRepoDigests(), Size: i.GetSize()})
	}
	slices.SortStableFunc(s.Images, func(a, b cri.Image) int { return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(b.ID, a.ID)) })
	filesystems := func(list []*runtimeapi.FilesystemUsage) (all []cri.Filesystem) {
		usage := func(v *runtimeapi.UInt64Value) cri.Usage { return cri.Usage{Value: v.GetValue(), OK: v != nil} }
		for _, f := range list {
			x := cri.Filesystem{Mountpoint: f.GetFsId().GetMountpoint(), Bytes: usage(f.GetUsedBytes()), Inodes: usage(f.GetInodesUsed())}
			if f.GetTimestamp() != 0 {
				x.Time = time.Unix(0, f.GetTimestamp())
			}
			all = append(all, x)
		}
		return all
	}
	s.ImageFilesystems = filesystems(a.filesystems.GetImageFilesystems())
	s.ContainerFilesystems = filesystems(a.filesystems.GetContainerFilesystems())
	return s
}

// What a runtime says with the generated code is what the product understands.
func TestDecodingIsTheGeneratedCodes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	path := socket(t)
	runtime := &server{}
	serve(t, path, runtime)
	const rounds = 1000
	var told int
	for i := range rounds {
		a := randomAnswers(random)
		runtime.set(a)
		s := newSampler(t, path)
		got := *s.Sample(t.Context())
		want := expected(a)
		if got.Reads[cri.CallStatus].Err == nil {
			told++
		}
		if few := len(a.status.GetStatus().GetConditions()) < 2; few != (got.Reads[cri.CallStatus].Err != nil) {
			t.Errorf("Status: %v", got.Reads[cri.CallStatus].Err)
		}
		for _, c := range []cri.Call{cri.CallVersion, cri.CallImageFsInfo, cri.CallListImages} {
			if err := got.Reads[c].Err; err != nil {
				t.Error(err)
			}
		}
		if diff := gocmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(cri.Snapshot{}, "Reads", "Endpoint", "LastReady", "Silent")); diff != "" {
			t.Fatalf("round %d: %s", i, diff)
		}
	}
	if told < rounds/4 {
		t.Errorf("only %d of %d statuses were complete", told, rounds)
	}
}

// A runtime's errors arrive as they are, whatever is in them.
func TestErrorsAreGRPCs(t *testing.T) {
	const message = "failed: 100 %, %41, %zz, ä\n, 日本"
	path := socket(t)
	runtime := &server{}
	serve(t, path, runtime)
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		s := newSampler(t, path)
		runtime.set(answers{err: status.Error(code, message)})
		err := s.Sample(t.Context()).Reads[cri.CallStatus].Err
		want := fmt.Sprintf("call Status of unix://%s: %s: %s", path, code, message)
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v; want %s", code, err, want)
		}
	}
}

// A node full of images: several megabytes.
func TestManyImages(t *testing.T) {
	path := socket(t)
	a := answers{
		version: &runtimeapi.VersionResponse{}, status: &runtimeapi.StatusResponse{},
		images: &runtimeapi.ListImagesResponse{}, filesystems: &runtimeapi.ImageFsInfoResponse{},
	}
	for i := range 20000 {
		a.images.Images = append(a.images.Images, &runtimeapi.Image{
			Id: fmt.Sprintf("sha256:%064x", i), Size: math.MaxUint64 - uint64(i),
			RepoTags: []string{fmt.Sprintf("registry.example/team/name:%d", i)}, RepoDigests: []string{fmt.Sprintf("registry.example/team/name@sha256:%064x", i)},
		})
	}
	runtime := &server{}
	runtime.set(a)
	serve(t, path, runtime)
	s := newSampler(t, path)
	want := expected(a).Images
	for range 2 {
		snap := s.Sample(t.Context())
		if err := snap.Reads[cri.CallListImages].Err; err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(want, snap.Images); diff != "" {
			t.Fatal(diff)
		}
	}
}

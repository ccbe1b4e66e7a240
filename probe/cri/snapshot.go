package cri

import (
	"cmp"
	"slices"
	"time"
)

// Snapshot is what the runtime reported of itself, as of the latest Sample.
// It is a plain value. Its slices are never changed after they are made, and may
// be shared; do not change them.
//
// The reply to a call stays when a later call fails: Reads shows how old it is.
// What no call has reported yet is the zero value, and the time of its read is
// zero.
type Snapshot struct {
	// Endpoint is where the runtime is called: Config.Endpoint. Where it is ""
	// there is no runtime, and nothing else in here means anything.
	Endpoint string
	// PodCIDR is the latest value of Configure's that the runtime accepted.
	PodCIDR string
	// Reads holds, for each call, when it was answered last, and what went wrong
	// since.
	Reads [NumCalls]Read

	Version Version
	Status  Status
	// LastReady is when the runtime last reported RuntimeReady as true; zero if it
	// never did.
	LastReady time.Time
	// Silent is how long it has not reported so again since then. It does not count
	// the time in which this process could not ask.
	Silent time.Duration
	// Images are those that the runtime holds, the largest first, and by
	// descending ID where they are of one size: in the order of the kubelet.
	Images []Image
	// ImageFilesystems hold the images, ContainerFilesystems the writable layers
	// of containers. Both are in the runtime's order; the kubelet takes the first.
	ImageFilesystems, ContainerFilesystems []Filesystem
}

// Call is a method of the CRI that a Sampler calls.
type Call uint8

// The calls, in the order in which a Sample makes them: the one that decides
// about the node comes first, the one that costs most comes last.
const (
	CallStatus Call = iota
	CallVersion
	CallUpdateRuntimeConfig // only after Configure
	CallImageFsInfo
	CallListImages

	// NumCalls is the length of an array indexed by Call.
	NumCalls = int(iota)
)

// String returns the method's name in the CRI.
func (c Call) String() string {
	return [NumCalls]string{"Status", "Version", "UpdateRuntimeConfig", "ImageFsInfo", "ListImages"}[c]
}

// Read is how a call went.
type Read struct {
	// Time is when the call was last answered, with a monotonic reading; zero if
	// it never was.
	Time time.Time
	// Err is why the latest attempt failed; nil if it did not. It names the
	// call and the endpoint.
	Err error
}

// Version identifies the runtime (CRI Version).
type Version struct {
	// RuntimeName is its name: "containerd", "cri-o".
	RuntimeName string
	// RuntimeVersion is its version in its own form, such as "1.6.20~ds1".
	RuntimeVersion string
	// RuntimeAPIVersion is the version of the CRI that it speaks: "v1".
	RuntimeAPIVersion string
}

// Status is the runtime's state (CRI Status).
type Status struct {
	// Runtime is the condition RuntimeReady, Network is NetworkReady. A Status
	// that was read has both, except that one is the zero value where the runtime
	// reports other conditions in its place.
	Runtime, Network Condition
	// Handlers are what a RuntimeClass can name, by ascending name. Old runtimes
	// report none.
	Handlers []Handler
	// Features are those of the runtime as a whole.
	Features Features
}

// Condition is one of the runtime's conditions.
type Condition struct {
	// Type is "RuntimeReady" or "NetworkReady"; "" if the runtime does not report
	// it.
	Type string
	// Status reports whether the condition holds.
	Status bool
	// Reason is a word, and Message a sentence, about the last change of Status;
	// both may be "".
	Reason, Message string
}

// Handler is a way to run containers.
type Handler struct {
	// Name is what a RuntimeClass calls it; "" is the default handler.
	Name string
	// RecursiveReadOnlyMounts and UserNamespaces report what it supports.
	RecursiveReadOnlyMounts, UserNamespaces bool
}

// Features are what the runtime supports with every handler.
type Features struct {
	// Reported is false where the runtime does not report features; then the other
	// fields mean nothing.
	Reported                                            bool
	SupplementalGroupsPolicy, UserNamespacesHostNetwork bool
}

// Image is an image that the runtime holds (CRI ListImages).
type Image struct {
	ID string
	// Tags and Digests are the names it has, with the repository: "a/b:1" and
	// "a/b@sha256:…".
	Tags, Digests []string
	// Size is in bytes.
	Size uint64
}

// Filesystem is one on which the runtime keeps something (CRI ImageFsInfo).
type Filesystem struct {
	// Time is when the runtime took the figures; it caches them.
	Time time.Time
	// Mountpoint is a directory of the node, and need not be a mount point:
	// containerd names the snapshotter's directory.
	Mountpoint string
	// Bytes and Inodes are how much the runtime uses of it.
	Bytes, Inodes Usage
}

// Usage is a figure that the runtime need not report.
type Usage struct {
	Value uint64
	OK    bool
}

// sort puts handlers, which the runtime reports in any order, into one that only
// changes when they do.
func (s *Status) sort() {
	slices.SortStableFunc(s.Handlers, func(a, b Handler) int { return cmp.Compare(a.Name, b.Name) })
}

func sortImages(images []Image) {
	slices.SortStableFunc(images, func(a, b Image) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(b.ID, a.ID))
	})
}

// same reports whether two snapshots are equal but for times and usages.
func (s *Snapshot) same(other *Snapshot) bool {
	for c := range s.Reads {
		if errorText(s.Reads[c].Err) != errorText(other.Reads[c].Err) || s.Reads[c].Time.IsZero() != other.Reads[c].Time.IsZero() {
			return false
		}
	}
	return s.Version == other.Version &&
		s.Status.Runtime == other.Status.Runtime && s.Status.Network == other.Status.Network &&
		s.Status.Features == other.Status.Features && slices.Equal(s.Status.Handlers, other.Status.Handlers) &&
		slices.EqualFunc(s.Images, other.Images, Image.equal) &&
		slices.EqualFunc(s.ImageFilesystems, other.ImageFilesystems, samePlace) &&
		slices.EqualFunc(s.ContainerFilesystems, other.ContainerFilesystems, samePlace)
}

func (i Image) equal(other Image) bool {
	return i.ID == other.ID && i.Size == other.Size &&
		slices.Equal(i.Tags, other.Tags) && slices.Equal(i.Digests, other.Digests)
}

func samePlace(a, b Filesystem) bool { return a.Mountpoint == b.Mountpoint }

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

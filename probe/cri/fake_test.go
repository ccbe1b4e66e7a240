package cri

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeprobe/nodeprobe/probe/cri/critest"
)

// socket returns the path of a socket that does not exist yet.
func socket(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "sock")
}

// listen serves a socket, one connection at a time, until the test ends.
func listen(t testing.TB, path string, serve func(net.Conn)) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serve(conn)
		}
	})
	t.Cleanup(func() { l.Close(); done.Wait() })
}

// startRuntime serves the socket until the test ends.
func startRuntime(t testing.TB, path string, replies critest.Replies) *critest.Runtime {
	t.Helper()
	r, err := critest.Start(path, replies)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r
}

// refusing are the replies of a runtime that returns an error to every call.
func refusing(err error) critest.Replies {
	return critest.Replies{Before: func(context.Context, string) error { return err }}
}

func condition(name string, status bool, reason, message string) *runtimeapi.RuntimeCondition {
	return &runtimeapi.RuntimeCondition{Type: name, Status: status, Reason: reason, Message: message}
}

func statusReply(conditions ...*runtimeapi.RuntimeCondition) *runtimeapi.StatusResponse {
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: conditions}}
}

// readyReply is a status with both conditions true, and no more.
func readyReply() *runtimeapi.StatusResponse { return critest.Healthy().Status }

// fullReplies have a value in every field that is read, and in others.
func fullReplies() critest.Replies {
	status := statusReply(condition("RuntimeReady", true, "", ""), condition("NetworkReady", false, "NetworkPluginNotReady", "cni plugin not initialized"))
	status.Info = map[string]string{"config": "{}"}
	status.RuntimeHandlers = []*runtimeapi.RuntimeHandler{
		{Name: "runc", Features: &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true, UserNamespaces: true}},
		{Features: &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true}},
	}
	status.Features = &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true}
	return critest.Replies{
		Status:  status,
		Version: &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "containerd", RuntimeVersion: "2.1.0", RuntimeApiVersion: "v1"},
		Images: &runtimeapi.ListImagesResponse{Images: []*runtimeapi.Image{
			{Id: "sha256:aa", RepoTags: []string{"pause:3.10"}, RepoDigests: []string{"pause@sha256:01"}, Size: 700},
			{Id: "sha256:bb", Size: 900, Uid: &runtimeapi.Int64Value{Value: 65535}, Pinned: true},
			{Id: "sha256:cc", RepoTags: []string{"a:1", "a:2"}, Size: 700},
		}},
		Filesystems: &runtimeapi.ImageFsInfoResponse{
			ImageFilesystems: []*runtimeapi.FilesystemUsage{{
				Timestamp: 1e9, FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/var/lib/images"},
				UsedBytes: &runtimeapi.UInt64Value{Value: 4096}, InodesUsed: &runtimeapi.UInt64Value{},
			}},
			ContainerFilesystems: []*runtimeapi.FilesystemUsage{{
				Timestamp: 2e9, FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/var/lib/layers"},
			}},
		},
	}
}

// What they mean.
var (
	wantStatus = Status{
		Runtime:  Condition{Type: "RuntimeReady", Status: true},
		Network:  Condition{Type: "NetworkReady", Reason: "NetworkPluginNotReady", Message: "cni plugin not initialized"},
		Handlers: []Handler{{RecursiveReadOnlyMounts: true}, {Name: "runc", RecursiveReadOnlyMounts: true, UserNamespaces: true}},
		Features: Features{Reported: true, SupplementalGroupsPolicy: true},
	}
	wantVersion = Version{RuntimeName: "containerd", RuntimeVersion: "2.1.0", RuntimeAPIVersion: "v1"}
	wantImages  = []Image{
		{ID: "sha256:bb", Size: 900},
		{ID: "sha256:cc", Tags: []string{"a:1", "a:2"}, Size: 700},
		{ID: "sha256:aa", Tags: []string{"pause:3.10"}, Digests: []string{"pause@sha256:01"}, Size: 700},
	}
	wantImageFilesystems = []Filesystem{{
		Time: time.Unix(1, 0), Mountpoint: "/var/lib/images", Bytes: Usage{4096, true}, Inodes: Usage{0, true},
	}}
	wantContainerFilesystems = []Filesystem{{Time: time.Unix(2, 0), Mountpoint: "/var/lib/layers"}}
)

// images returns a list whose message is of so many bytes, at least 100.
func images(size int) *runtimeapi.ListImagesResponse {
	list := &runtimeapi.ListImagesResponse{Images: []*runtimeapi.Image{{}}}
	for n := size - 16; ; n++ { // what tags and lengths take
		list.Images[0].Id = strings.Repeat("x", n)
		if proto.Size(list) == size {
			return list
		}
	}
}

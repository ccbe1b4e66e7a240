// Package cri runs the product's client of the container runtime against
// containerd.
package cri

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/test/harness/containerd"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/wait"
)

// startContainerd runs containerd, without a network, until its CRI answers.
func startContainerd(t testing.TB, dir string) *containerd.Containerd {
	t.Helper()
	c := containerd.Start(t, containerd.Options{Dir: dir, NoNetwork: true})
	s := newSampler(t, c.Socket)
	wait.Until(t, 2*time.Minute, "the CRI answers", func() error { return s.Sample(t.Context()).Reads[cri.CallStatus].Err })
	return c
}

// newSampler lists images in each Sample.
func newSampler(t testing.TB, path string) *cri.Sampler {
	t.Helper()
	s, err := cri.New(cri.Config{Endpoint: "unix://" + path, ImageInterval: time.Nanosecond, Timeout: 3 * time.Second})
	must.OK(t, err)
	t.Cleanup(s.Close)
	return s
}

func mustRead(t testing.TB, s *cri.Sampler) *cri.Snapshot {
	t.Helper()
	snap := s.Sample(t.Context())
	for _, read := range snap.Reads {
		must.Note(t, read.Err)
	}
	return snap
}

// TestContainerd reads a real runtime, while it works, hangs, is dead and is back.
func TestContainerd(t *testing.T) {
	dir := t.TempDir()
	c := startContainerd(t, dir)
	s, runtime := newSampler(t, c.Socket), c.Process

	containerd.ImportImages(t, c.Socket, 7)
	// containerd's CRI learns of them a little later, and of their digests later
	// still.
	var got cri.Snapshot
	wait.Until(t, 2*time.Minute, "all images are listed with their names", func() error {
		got = *mustRead(t, s)
		whole := 0
		for _, image := range got.Images {
			if image.ID != "" && image.Size > 0 && len(image.Tags) > 0 && len(image.Digests) > 0 {
				whole++
			}
		}
		if whole != 7 || len(got.Images) != 7 {
			return fmt.Errorf("%d of %d are", whole, len(got.Images))
		}
		return nil
	})
	if v := got.Version; v.RuntimeName != "containerd" || v.RuntimeVersion == "" || v.RuntimeAPIVersion != "v1" {
		t.Errorf("version %+v", v)
	}
	if !got.Status.Runtime.Status || got.LastReady.IsZero() {
		t.Errorf("%v, last ready at %v", got.Status.Runtime, got.LastReady)
	}
	err := got.Unready()
	if err == nil || !strings.HasPrefix(err.Error(), "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady") {
		t.Errorf("without CNI: %v", err)
	}
	if len(got.ImageFilesystems) != 1 {
		t.Fatalf("filesystems %+v", got.ImageFilesystems)
	}
	if fs := got.ImageFilesystems[0]; !strings.HasPrefix(fs.Mountpoint, dir) || !fs.Bytes.OK || !fs.Inodes.OK || time.Since(fs.Time) > time.Hour {
		t.Errorf("filesystem %+v", fs)
	}

	signal := func(sig os.Signal) {
		t.Helper()
		must.OK(t, runtime.Signal(sig))
	}
	signal(syscall.SIGSTOP)
	waitStopped(t, runtime.PID())
	err = s.Sample(t.Context()).Reads[cri.CallStatus].Err
	signal(syscall.SIGCONT)
	if err == nil || !strings.HasSuffix(err.Error(), "no answer within 3s") {
		t.Errorf("while it hangs: %v", err)
	}
	mustRead(t, s)

	signal(syscall.SIGKILL)
	<-runtime.Exited()
	err = s.Sample(t.Context()).Reads[cri.CallStatus].Err
	if err == nil || !strings.HasSuffix(err.Error(), "connect: connection refused") {
		t.Errorf("when it is dead: %v", err)
	}
	startContainerd(t, dir)
	again := *mustRead(t, s)
	if diff := cmp.Diff(got.Images, again.Images); diff != "" || again.Version != got.Version {
		t.Errorf("after a restart: %v, images %s", again.Version, diff)
	}

	s.Configure("10.244.3.0/24")
	if told := mustRead(t, s); told.PodCIDR != "10.244.3.0/24" || told.Reads[cri.CallUpdateRuntimeConfig].Time.IsZero() {
		t.Errorf("told the pods' addresses: %q, %+v", told.PodCIDR, told.Reads[cri.CallUpdateRuntimeConfig])
	}
}

// waitStopped waits until every thread of a process has stopped: one that was
// running when it got the signal may answer yet.
func waitStopped(t *testing.T, pid int) {
	t.Helper()
	wait.Until(t, 2*time.Minute, "the process has stopped", func() error {
		files := must.Get(filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)))(t)
		for _, file := range files {
			if stat, err := os.ReadFile(file); err == nil && !strings.Contains(string(stat), ") T ") {
				return fmt.Errorf("%s: %s", file, stat)
			}
		}
		return nil
	})
}

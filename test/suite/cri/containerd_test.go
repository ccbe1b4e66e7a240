package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/test/harness/containerd"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
	"github.com/nodeprobe/nodeprobe/test/harness/wait"
)

// startContainerd runs containerd with everything of its own in dir, and returns
// when it serves dir/sock. The caller stops it.
func startContainerd(t testing.TB, dir string) *process.Process {
	t.Helper()
	need.Root(t)
	need.Command(t, "containerd", "containerd")
	config := filepath.Join(dir, "config.toml")
	err := os.WriteFile(config, fmt.Appendf(nil, `version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
address = "%[1]s/sock"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "%[1]s/cni/bin"
conf_dir = "%[1]s/cni/net.d"
`, dir), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	p, err := process.Start(process.Spec{Path: "containerd", Args: []string{"--config", config}, LogFile: filepath.Join(dir, "log")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(5 * time.Second) })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s := newSampler(t, filepath.Join(dir, "sock"))
	err = p.WaitReady(ctx, func(ctx context.Context) error { return s.Sample(ctx).Reads[cri.CallStatus].Err })
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// asked asks a runtime with the generated code.
func asked(t testing.TB, path string) answers {
	t.Helper()
	connection, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	runtime, image := runtimeapi.NewRuntimeServiceClient(connection), runtimeapi.NewImageServiceClient(connection)
	var a answers
	var errs [4]error
	a.version, errs[0] = runtime.Version(t.Context(), &runtimeapi.VersionRequest{})
	a.status, errs[1] = runtime.Status(t.Context(), &runtimeapi.StatusRequest{})
	a.images, errs[2] = image.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	a.filesystems, errs[3] = image.ImageFsInfo(t.Context(), &runtimeapi.ImageFsInfoRequest{})
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return a
}

// TestContainerd compares what the product and the generated code read of a real
// runtime, and has it hang, die and come back.
func TestContainerd(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sock")
	runtime := startContainerd(t, dir)
	s, err := cri.New(cri.Config{Endpoint: path, ImageInterval: time.Nanosecond, Timeout: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}

	importImages(t, path, 7)
	var a answers
	// Containerd's own list follows its store by events.
	wait.Until(t, time.Minute, "all images are listed with their digests", func() error {
		a = asked(t, path)
		whole := 0
		for _, image := range a.images.Images {
			if len(image.RepoTags) > 0 && len(image.RepoDigests) > 0 {
				whole++
			}
		}
		if whole != 7 {
			return fmt.Errorf("%d of %d are", whole, len(a.images.Images))
		}
		return nil
	})
	// The time is that of the snapshotter's last look at its figures, at each of
	// which it makes a new one.
	options := gocmp.Options{
		cmpopts.EquateEmpty(), cmpopts.IgnoreFields(cri.Snapshot{}, "Reads", "Endpoint", "LastReady", "Silent"),
		cmpopts.IgnoreFields(cri.Filesystem{}, "Time"),
	}
	// It may look just between our question and the other.
	var got cri.Snapshot
	for attempt := 1; ; attempt++ {
		got = *mustRead(t, s)
		diff := gocmp.Diff(expected(a), got, options)
		if diff == "" {
			break
		}
		if attempt == 5 {
			t.Fatal(diff)
		}
		a = asked(t, path)
	}
	t.Logf("%s %s, %v, %v, %d images on %s", got.Version.RuntimeName, got.Version.RuntimeVersion, got.Status.Runtime, got.Status.Network,
		len(got.Images), got.ImageFilesystems[0].Mountpoint)
	if err := got.Unready(); err == nil || !strings.HasPrefix(err.Error(), "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady") {
		t.Errorf("without CNI: %v", err)
	}

	signal := func(sig os.Signal) {
		t.Helper()
		if err := runtime.Signal(sig); err != nil {
			t.Fatal(err)
		}
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
	options = append(options, cmpopts.IgnoreFields(cri.Filesystem{}, "Bytes", "Inodes"))
	if diff := gocmp.Diff(got, again, options); diff != "" {
		t.Errorf("after a restart: %s", diff)
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
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(files) == 0 {
			t.Fatalf("threads of %d: %v", pid, err)
		}
		if !slices.ContainsFunc(files, func(file string) bool {
			stat, err := os.ReadFile(file)
			return err == nil && !strings.Contains(string(stat), ") T ")
		}) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d does not stop", pid)
		}
	}
}

// importImages gives containerd some images.
func importImages(t testing.TB, path string, n int) {
	t.Helper()
	if err := containerd.ImportImages(t.Context(), path, n); err != nil {
		t.Fatal(err)
	}
	// containerd's CRI hears of them a little later.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s := newSampler(t, path)
	for {
		got := len(mustRead(t, s).Images)
		if got >= n {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("containerd lists %d images of %d", got, n)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

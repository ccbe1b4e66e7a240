// Package containerd runs Debian's containerd for a test: with directories and a
// socket of its own, beside any other that the machine may run.
package containerd

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

const (
	readyTimeout = 2 * time.Minute
	stopGrace    = 20 * time.Second
)

// Options for Start.
type Options struct {
	// Dir receives images, state, configuration, socket and log; what an earlier
	// containerd left there is there again. A socket's path must not be longer than
	// 107 bytes.
	Dir string
	// SandboxImage is what the sandbox of a pod runs: an image that has been
	// imported. Empty if there will be no pods.
	SandboxImage string
	// NoNetwork leaves the runtime without a network, as an installation without CNI.
	NoNetwork bool
}

// Containerd is a running containerd.
type Containerd struct {
	// Endpoint is the CRI's URL, for kubelets and crictl.
	Endpoint string
	// Socket is the same for ctr.
	Socket string

	// Process is containerd itself.
	Process *process.Process

	dir string
}

// Start runs containerd until the test ends, and returns when it takes connections.
// The test is skipped where none can be run; if it fails, the end of the log is shown.
func Start(t testing.TB, opts Options) *Containerd {
	t.Helper()
	need.Root(t)
	need.Command(t, "containerd", "containerd")
	c := &Containerd{Socket: filepath.Join(opts.Dir, "containerd.sock"), dir: opts.Dir}
	c.Endpoint = "unix://" + c.Socket
	cni, configFile, log := filepath.Join(opts.Dir, "cni"), filepath.Join(opts.Dir, "containerd.toml"), filepath.Join(opts.Dir, "containerd.log")
	must.OK(t, os.MkdirAll(cni, 0o755))
	if !opts.NoNetwork {
		must.OK(t, os.WriteFile(filepath.Join(cni, "10-loopback.conflist"), []byte(network), 0o600))
	}
	must.OK(t, os.WriteFile(configFile, []byte(config(opts, c.Socket, cni)), 0o600))
	c.Process = must.Get(process.Start(process.Spec{Path: "containerd", Args: []string{"--config", configFile}, LogFile: log}))(t)
	t.Cleanup(func() {
		must.Note(t, c.Stop())
		if t.Failed() {
			t.Logf("containerd's last lines:\n%s", process.LogTail(log, 20))
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), readyTimeout)
	defer cancel()
	must.OK(t, c.Process.WaitReady(ctx, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", c.Socket)
		if err != nil {
			return err
		}
		return conn.Close()
	}))
	return c
}

// network lets the runtime say that it has a network, without which no kubelet is
// Ready. Pods have to use the host's.
const network = `{"cniVersion": "0.3.1", "name": "none", "plugins": [{"type": "loopback"}]}` + "\n"

func config(opts Options, socket, cni string) string {
	text := fmt.Sprintf(`version = 2
root = %q
state = %q
[grpc]
  address = %q
[ttrpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  # A machine that may not lower oom_score_adj cannot start pods otherwise.
  restrict_oom_score_adj = true
`, filepath.Join(opts.Dir, "root"), filepath.Join(opts.Dir, "state"), socket, socket+".ttrpc")
	if opts.SandboxImage != "" {
		text += fmt.Sprintf("  sandbox_image = %q\n", opts.SandboxImage)
	}
	return text + fmt.Sprintf("  [plugins.\"io.containerd.grpc.v1.cri\".cni]\n    conf_dir = %q\n", cni)
}

// Stop ends containerd, and unmounts what it has left mounted. Containers, if
// there are any, are to be gone by then. Stopping twice is fine.
func (c *Containerd) Stop() error {
	c.Process.Stop(stopGrace)
	// It keeps a tmpfs for the sandboxes' /dev/shm and the like.
	err := unix.Unmount(filepath.Join(c.dir, "state"), unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // it is no mount point
		return fmt.Errorf("unmount containerd's state: %w", err)
	}
	return nil
}

// ImportImages gives the containerd at a socket some images for its CRI. They are
// nothing but names, one to three of each, and a configuration. It needs the
// program ctr, which comes with containerd. The CRI lists them a little later.
func ImportImages(t testing.TB, socket string, n int) {
	t.Helper()
	type manifest struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	layer := make([]byte, 1024) // an empty archive
	files := []file{{"layer.tar", 0o600, layer}}
	var manifests []manifest
	for i := range n {
		config := fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","author":"%d","rootfs":{"type":"layers","diff_ids":["sha256:%x"]}}`,
			i, sha256.Sum256(layer))
		m := manifest{Config: fmt.Sprintf("%x.json", sha256.Sum256(config)), Layers: []string{"layer.tar"}}
		for tag := range i%3 + 1 {
			m.RepoTags = append(m.RepoTags, fmt.Sprintf("registry.example/team/name-%d:%d", i, tag))
		}
		files = append(files, file{m.Config, 0o600, config})
		manifests = append(manifests, m)
	}
	index := must.Get(json.Marshal(manifests))(t)
	ctrImport(t, socket, archive(t, append(files, file{"manifest.json", 0o600, index})...), "--no-unpack", "--digests")
}

// Import gives the containerd at a socket the images of an archive such as "docker
// save" makes.
func Import(t testing.TB, socket, name string) {
	t.Helper()
	ctrImport(t, socket, must.Get(os.ReadFile(name))(t))
}

// ImportProgram gives the containerd at a socket an image with nothing in it but one
// static program, which it runs.
func ImportProgram(t testing.TB, socket, image, program string) {
	t.Helper()
	layer := archive(t, file{"program", 0o755, must.Get(os.ReadFile(program))(t)})
	config := fmt.Appendf(nil, `{"architecture":%q,"os":"linux","config":{"Entrypoint":["/program"]},"rootfs":{"type":"layers","diff_ids":["sha256:%x"]}}`,
		runtime.GOARCH, sha256.Sum256(layer))
	manifest := fmt.Appendf(nil, `[{"Config":"config.json","RepoTags":[%q],"Layers":["layer.tar"]}]`, image)
	ctrImport(t, socket, archive(t, file{"layer.tar", 0o600, layer}, file{"config.json", 0o600, config}, file{"manifest.json", 0o600, manifest}))
}

// file is one of an archive's.
type file struct {
	name    string
	mode    int64
	content []byte
}

func archive(t testing.TB, files ...file) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		must.OK(t, w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content))}))
		must.Get(w.Write(f.content))(t)
	}
	must.OK(t, w.Close())
	return buf.Bytes()
}

func ctrImport(t testing.TB, socket string, archive []byte, args ...string) {
	t.Helper()
	args = append([]string{"--address", socket, "--namespace", "k8s.io", "images", "import"}, args...)
	ctr := exec.CommandContext(t.Context(), "ctr", append(args, "-")...)
	ctr.Stdin = bytes.NewReader(archive)
	if out, err := ctr.CombinedOutput(); err != nil {
		t.Fatalf("import images: %v: %s", err, out)
	}
}

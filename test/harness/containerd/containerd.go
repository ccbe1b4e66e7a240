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
	"io"
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
}

// Containerd is a running containerd. The caller must Stop it.
type Containerd struct {
	// Endpoint is the CRI's URL, for kubelets and crictl.
	Endpoint string
	// Socket is the same for ctr.
	Socket string
	// LogFile is what it writes.
	LogFile string

	dir     string
	process *process.Process
}

// Start runs containerd and returns when it takes connections. It needs root and
// the programs containerd and, for pods, runc. ctx bounds the start, not the
// life.
func Start(ctx context.Context, opts Options) (*Containerd, error) {
	path, err := exec.LookPath("containerd")
	if err != nil {
		return nil, fmt.Errorf("start containerd (Debian package containerd): %w", err)
	}
	c := &Containerd{
		Socket:  filepath.Join(opts.Dir, "containerd.sock"),
		LogFile: filepath.Join(opts.Dir, "containerd.log"),
		dir:     opts.Dir,
	}
	c.Endpoint = "unix://" + c.Socket
	cni := filepath.Join(opts.Dir, "cni")
	configFile := filepath.Join(opts.Dir, "containerd.toml")
	if err := errors.Join(
		os.MkdirAll(cni, 0o755),
		os.WriteFile(filepath.Join(cni, "10-loopback.conflist"), []byte(network), 0o600),
		os.WriteFile(configFile, []byte(config(opts, c.Socket, cni)), 0o600),
	); err != nil {
		return nil, fmt.Errorf("configure containerd: %w", err)
	}
	c.process, err = process.Start(process.Spec{Path: path, Args: []string{"--config", configFile}, LogFile: c.LogFile})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := c.process.WaitReady(ctx, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", c.Socket)
		if err != nil {
			return err
		}
		return conn.Close()
	}); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
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

// Exited is closed when the process has ended, for whatever reason.
func (c *Containerd) Exited() <-chan struct{} { return c.process.Exited() }

// Stop ends containerd, and unmounts what it has left mounted. Containers, if
// there are any, are to be gone by then. Stopping twice is fine.
func (c *Containerd) Stop() error {
	c.process.Stop(stopGrace)
	// It keeps a tmpfs for the sandboxes' /dev/shm and the like.
	err := unix.Unmount(filepath.Join(c.dir, "state"), unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // it is no mount point
		return fmt.Errorf("unmount containerd's state: %w", err)
	}
	return nil
}

// ImportImages gives a containerd some images for its CRI, by its socket. They are
// nothing but names, one to three of each, and a configuration. It needs the
// program ctr, which comes with containerd. The CRI lists them a little later.
func ImportImages(ctx context.Context, socket string, n int) error {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(name string, content []byte) error {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(content))})
		if err == nil {
			_, err = w.Write(content)
		}
		return err
	}
	type manifest struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	layer := make([]byte, 1024) // an empty archive
	errs := []error{add("layer.tar", layer)}
	var manifests []manifest
	for i := range n {
		config := fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","author":"%d","rootfs":{"type":"layers","diff_ids":["sha256:%x"]}}`,
			i, sha256.Sum256(layer))
		m := manifest{Config: fmt.Sprintf("%x.json", sha256.Sum256(config)), Layers: []string{"layer.tar"}}
		for tag := range i%3 + 1 {
			m.RepoTags = append(m.RepoTags, fmt.Sprintf("registry.example/team/name-%d:%d", i, tag))
		}
		errs = append(errs, add(m.Config, config))
		manifests = append(manifests, m)
	}
	index, err := json.Marshal(manifests)
	errs = append(errs, err, add("manifest.json", index), w.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("make images: %w", err)
	}
	return ctrImport(ctx, socket, &archive, "--no-unpack", "--digests")
}

// Import gives a containerd, by its socket, the images of an archive such as
// "docker save" makes.
func Import(ctx context.Context, socket, file string) error {
	archive, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("import images: %w", err)
	}
	defer archive.Close()
	return ctrImport(ctx, socket, archive)
}

// ImportProgram gives a containerd, by its socket, an image with nothing in it but
// one static program, which it runs.
func ImportProgram(ctx context.Context, socket, image, program string) error {
	binary, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	var layer, archive bytes.Buffer
	w := tar.NewWriter(&layer)
	err = errors.Join(w.WriteHeader(&tar.Header{Name: "program", Mode: 0o755, Size: int64(len(binary))}), write(w, binary), w.Close())
	config := fmt.Appendf(nil, `{"architecture":%q,"os":"linux","config":{"Entrypoint":["/program"]},"rootfs":{"type":"layers","diff_ids":["sha256:%x"]}}`,
		runtime.GOARCH, sha256.Sum256(layer.Bytes()))
	manifest := fmt.Appendf(nil, `[{"Config":"config.json","RepoTags":[%q],"Layers":["layer.tar"]}]`, image)
	w = tar.NewWriter(&archive)
	for _, file := range []struct {
		name    string
		content []byte
	}{{"layer.tar", layer.Bytes()}, {"config.json", config}, {"manifest.json", manifest}} {
		err = errors.Join(err, w.WriteHeader(&tar.Header{Name: file.name, Mode: 0o600, Size: int64(len(file.content))}), write(w, file.content))
	}
	if err := errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	return ctrImport(ctx, socket, &archive)
}

func write(w io.Writer, content []byte) error {
	_, err := w.Write(content)
	return err
}

func ctrImport(ctx context.Context, socket string, archive io.Reader, args ...string) error {
	ctr := exec.CommandContext(ctx, "ctr", append(append([]string{"--address", socket, "--namespace", "k8s.io", "images", "import"}, args...), "-")...)
	ctr.Stdin = archive
	if out, err := ctr.CombinedOutput(); err != nil {
		return fmt.Errorf("import images: %w: %s", err, out)
	}
	return nil
}

// StartForTest is Start, and stops containerd when the test ends. The test is skipped
// where none can be run; if it has failed, the last lines of the log are shown.
func StartForTest(t testing.TB, opts Options) *Containerd {
	t.Helper()
	need.Root(t)
	need.Command(t, "containerd", "containerd")
	c := must.Get(Start(t.Context(), opts))(t)
	t.Cleanup(func() {
		must.Note(t, c.Stop())
		if t.Failed() {
			t.Logf("containerd's last lines:\n%s", process.LogTail(c.LogFile, 20))
		}
	})
	return c
}

// Package containerd runs Debian's containerd for a test: with directories and a
// socket of its own, beside any other that the machine may run.
package containerd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

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

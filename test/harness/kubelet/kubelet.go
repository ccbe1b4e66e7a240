// Package kubelet runs a real kubelet against a control plane of package
// controlplane, to compare nodeprobe with. It is built from the same module as
// the API server.
package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

const (
	readyTimeout = 3 * time.Minute
	stopGrace    = 5 * time.Second
)

// Build returns the kubelet's file, building it first if the cache lacks it.
func Build(t testing.TB) string {
	t.Helper()
	return controlplane.Program(t, "kubelet")
}

// Config is a KubeletConfiguration, by field. Values are what the YAML has:
// "1s", 4, []string.
type Config map[string]any

// Options for Start.
type Options struct {
	NodeName string
	// RuntimeEndpoint is the CRI's URL.
	RuntimeEndpoint string
	// Dir receives configuration, certificates and the log.
	Dir string
	// RootDir is where it keeps its own data; the filesystem is nodefs. Empty
	// means a directory in Dir.
	RootDir string
	// Thresholds is evictionHard: there are no others.
	Thresholds map[string]string
	// Config is what else to set: reservations, periods, anything.
	Config Config
	// Args come after the arguments of every kubelet.
	Args []string
}

// Kubelet is a running kubelet.
type Kubelet struct {
	*process.Process
	restore func() error
}

// Start runs a kubelet until the test ends, and returns when it reports that it is
// healthy, which is about when it registers the Node. It needs root. If the test fails,
// the end of the kubelet's log is shown.
func Start(t testing.TB, cp *controlplane.ControlPlane, opts Options) *Kubelet {
	t.Helper()
	if opts.RootDir == "" {
		opts.RootDir = filepath.Join(opts.Dir, "root")
	}
	must.OK(t, os.MkdirAll(opts.RootDir, 0o755))
	path, kubeconfig, log := Build(t), must.Get(cp.NodeKubeconfig(opts.NodeName))(t), filepath.Join(opts.Dir, "kubelet.log")
	k := &Kubelet{restore: keepMachine(t, opts.RootDir)}
	t.Cleanup(func() {
		must.Note(t, k.Stop())
		if t.Failed() {
			t.Logf("the kubelet's last lines:\n%s", process.LogTail(log, 20))
		}
	})
	must.OK(t, process.Retry(func() error {
		ports := must.Get(process.FreePorts(2))(t)
		// JSON is YAML too.
		config, file := must.Get(json.MarshalIndent(opts.config(ports[0], ports[1]), "", "  "))(t), filepath.Join(opts.Dir, "kubelet.yaml")
		must.OK(t, os.WriteFile(file, config, 0o600))
		k.Process = must.Get(process.Start(process.Spec{
			Path: path, LogFile: log,
			Args: append([]string{
				"--config=" + file,
				"--kubeconfig=" + kubeconfig,
				"--hostname-override=" + opts.NodeName,
				"--root-dir=" + opts.RootDir,
				"--cert-dir=" + filepath.Join(opts.Dir, "pki"),
				"--v=2",
			}, opts.Args...),
		}))(t)
		ctx, cancel := context.WithTimeout(t.Context(), readyTimeout)
		defer cancel()
		health := "http://127.0.0.1:" + strconv.Itoa(ports[1]) + "/healthz"
		return k.WaitReady(ctx, func(ctx context.Context) error { return process.GetOK(ctx, health) })
	}))
	return k
}

// Stop ends the kubelet, and puts back what it has changed on the machine. Stopping
// twice is fine.
func (k *Kubelet) Stop() error {
	if k.Process != nil {
		k.Process.Stop(stopGrace)
	}
	return k.restore()
}

// config is the configuration of a kubelet that leaves the machine alone, with
// what the caller wants besides.
func (o *Options) config(port, healthzPort int) Config {
	c := Config{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"containerRuntimeEndpoint": o.RuntimeEndpoint,
		"address":                  "127.0.0.1", "port": port,
		"healthzBindAddress": "127.0.0.1", "healthzPort": healthzPort,
		"evictionHard": o.Thresholds,
		// Any machine will do: with cgroup v1, or with a memory controller that is
		// somebody else's, with swap, without systemd.
		"failCgroupV1": false, "failSwapOn": false,
		"cgroupDriver": "cgroupfs", "cgroupsPerQOS": false, "enforceNodeAllocatable": []string{},
		"oomScoreAdj": 0,
		// Nothing outside of our directories, if it can be helped.
		"makeIPTablesUtilChains": false,
		"podLogsDir":             filepath.Join(o.Dir, "pods"),
		"volumePluginDir":        filepath.Join(o.Dir, "volume-plugins"),
	}
	maps.Copy(c, o.Config)
	return c
}

// tunables are what a kubelet sets as it likes, without being asked.
var tunables = []string{
	"vm/overcommit_memory", "vm/panic_on_oom",
	"kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// devicePlugins is a directory that a kubelet uses wherever its root directory
// is.
const devicePlugins = "/var/lib/kubelet/device-plugins"

// keepMachine notes what a kubelet changes outside of its directories, and returns
// what puts it back. It waits for the kubelet of another test to end, and fails if one
// that is no test's runs on this machine, which ours would cut off from its plugins.
func keepMachine(t testing.TB, rootDir string) (restore func() error) {
	t.Helper()
	unlock := build.Lock(t, filepath.Join(os.TempDir(), "nodeprobe-kubelet.lock"))
	if conn, err := net.Dial("unix", filepath.Join(devicePlugins, "kubelet.sock")); err == nil {
		conn.Close()
		unlock()
		t.Fatal("start kubelet: this machine runs one already")
	}
	putBack, before := must.Get(keep("/proc/sys", devicePlugins))(t), must.Get(mounts(rootDir))(t)
	return func() error {
		defer unlock()
		return errors.Join(unmount(rootDir, before), putBack())
	}
}

// unmount leaves so many mounts of dir: a kubelet mounts its root directory over
// itself.
func unmount(dir string, leave int) error {
	for {
		n, err := mounts(dir)
		if err != nil || n <= leave {
			return err
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount kubelet's root directory: %w", err)
		}
	}
}

// mounts returns how many filesystems are mounted at dir, over each other.
func mounts(dir string) (n int, err error) {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return 0, fmt.Errorf("list mounts: %w", err)
	}
	for line := range strings.Lines(string(mountinfo)) {
		// 36 35 98:0 /root /mount-point options … - ext4 /dev/sda1 options
		if f := strings.Fields(line); len(f) > 4 && f[4] == dir {
			n++
		}
	}
	return n, nil
}

func keep(sysctls, dir string) (restore func() error, err error) {
	values := map[string][]byte{}
	for _, name := range tunables {
		file := filepath.Join(sysctls, name)
		value, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("note kernel setting: %w", err)
		}
		values[file] = value
	}
	_, existed := os.Stat(dir)
	return func() error {
		var errs []error
		for file, value := range values {
			if err := os.WriteFile(file, value, 0); err != nil {
				errs = append(errs, fmt.Errorf("restore kernel setting: %w", err))
			}
		}
		if errors.Is(existed, fs.ErrNotExist) {
			if err := os.RemoveAll(dir); err != nil {
				errs = append(errs, fmt.Errorf("remove kubelet's directory: %w", err))
			}
			// The one above too, unless somebody else uses it.
			_ = os.Remove(filepath.Dir(dir))
		}
		return errors.Join(errs...)
	}, nil
}

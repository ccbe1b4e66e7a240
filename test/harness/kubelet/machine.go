package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
)

// tunables are what a kubelet sets as it likes, without being asked.
var tunables = []string{
	"vm/overcommit_memory", "vm/panic_on_oom",
	"kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// devicePlugins is a directory that a kubelet uses wherever its root directory
// is.
const devicePlugins = "/var/lib/kubelet/device-plugins"

// keepMachine notes what a kubelet changes outside of its directories, and
// returns what puts it back. It waits for the kubelet of another test to end, and
// fails if somebody else's runs on this machine, which ours would cut off from its
// plugins.
func keepMachine(ctx context.Context, rootDir string, log io.Writer) (_ func() error, err error) {
	unlock, err := build.Lock(ctx, filepath.Join(os.TempDir(), "nodeprobe-kubelet.lock"), "waiting for the kubelet of another test", log)
	if err != nil {
		return nil, fmt.Errorf("start kubelet: %w", err)
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	if conn, err := net.Dial("unix", filepath.Join(devicePlugins, "kubelet.sock")); err == nil {
		conn.Close()
		return nil, errors.New("start kubelet: this machine runs one already")
	}
	putBack, err := keep("/proc/sys", devicePlugins)
	if err != nil {
		return nil, err
	}
	before, err := mounts(rootDir)
	if err != nil {
		return nil, err
	}
	return func() error {
		defer unlock()
		return errors.Join(unmount(rootDir, before), putBack())
	}, nil
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

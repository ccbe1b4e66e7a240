package preflight

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// WrongPaths returns a finding for each of cfg's paths that does not lead to the node. In
// a pod that is a volume that was forgotten, or one of another directory.
func WrongPaths(cfg *nodeprobe.Config) []Finding {
	var findings []Finding
	for _, path := range []struct{ flag, value, host string }{
		{"--path.procfs", cfg.Procfs, "/proc"}, {"--path.sysfs", cfg.Sysfs, "/sys"}, {"--path.rootfs", cfg.Rootfs, "/"},
	} {
		if err := within("open "+path.value, func() error { return hasFiles(path.value) }); err != nil {
			findings = append(findings, Finding{
				path.flag, Fails, err.Error(),
				"mount the node's " + path.host + " there, in a pod as a hostPath volume, or correct " + path.flag,
			})
		}
	}
	if len(findings) > 0 {
		return findings
	}
	other := ""
	if err := within("stat "+cfg.Rootfs, func() error { other = otherRoot(cfg); return nil }); err == nil && other != "" {
		findings = append(findings, Finding{
			"--path.rootfs", Missing, fmt.Sprintf("%s is not the root directory of the node's process 1, %s", cfg.Rootfs, other),
			"mount the node's / and name it in --path.rootfs, and its /proc in --path.procfs; disks are not the node's otherwise",
		})
	}
	return findings
}

// fileTimeout bounds looking at a file or a directory that may be on a disk.
const fileTimeout = 2 * time.Second

// within returns what look returns, or an error if it has not returned in time: a disk
// that hangs is no reason not to start.
func within(what string, look func() error) error {
	var worker deadline.Worker[error]
	err, late := worker.Do(fileTimeout, what, look)
	return cmp.Or(late, err)
}

func hasFiles(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Readdirnames(1); errors.Is(err, io.EOF) {
		return fmt.Errorf("%s is empty", dir)
	} else if err != nil {
		return err
	}
	return nil
}

// otherRoot returns where the root directory of process 1 is, if it is neither rootfs
// nor our own: a container without the node's PIDs has a process 1 that knows no more of
// the node than we do. It returns "" if we may not look at process 1.
func otherRoot(cfg *nodeprobe.Config) string {
	path := filepath.Join(cfg.Procfs, "1/root")
	first, err := os.Stat(path + "/")
	if err != nil {
		return ""
	}
	for _, dir := range []string{cfg.Rootfs, "/"} {
		if info, err := os.Stat(dir); err != nil || os.SameFile(info, first) {
			return ""
		}
	}
	return path
}

// blame makes the remedies of what fails below a wrong path point to that path.
func blame(wrong, findings []Finding, cfg *nodeprobe.Config) {
	values := map[string]string{"--path.procfs": cfg.Procfs, "--path.sysfs": cfg.Sysfs, "--path.rootfs": cfg.Rootfs}
	for i := range findings {
		f := &findings[i]
		for _, w := range wrong {
			if w.Outcome == Fails && f.Remedy != "" && strings.Contains(" "+f.Detail, " "+values[w.What]) {
				f.Remedy = "see " + w.What
			}
		}
	}
}

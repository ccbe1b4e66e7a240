package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// wrongPaths says which paths do not lead to the node. In a pod that is a volume
// which was forgotten, or one of another directory.
func wrongPaths(p paths) []finding {
	var findings []finding
	for _, path := range []struct{ flag, value, host string }{
		{"--path.procfs", p.procfs, "/proc"}, {"--path.sysfs", p.sysfs, "/sys"}, {"--path.rootfs", p.rootfs, "/"},
	} {
		if err := within("open "+path.value, func() error { return hasFiles(path.value) }); err != nil {
			findings = append(findings, finding{
				path.flag, outcomeFails, err.Error(),
				"mount the node's " + path.host + " there, in a pod as a hostPath volume, or correct " + path.flag,
			})
		}
	}
	if len(findings) > 0 {
		return findings
	}
	other := ""
	if err := within("stat "+p.rootfs, func() error { other = otherRoot(p); return nil }); err == nil && other != "" {
		findings = append(findings, finding{
			"--path.rootfs", outcomeMissing, fmt.Sprintf("%s is not the root directory of the node's process 1, %s", p.rootfs, other),
			"mount the node's / and name it in --path.rootfs, and its /proc in --path.procfs; disks are not the node's otherwise",
		})
	}
	return findings
}

// fileTimeout is how long a file or a directory is waited for that may be on a disk.
const fileTimeout = 2 * time.Second

// within returns what look does, or that it has not returned in time: a disk that hangs
// is no reason not to start.
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

// otherRoot returns where the root directory of process 1 is, if it is neither
// rootfs nor our own: a container without the node's PIDs has a process 1 that
// knows no more of the node than we do. Who may not look at process 1 gets "".
func otherRoot(p paths) string {
	path := filepath.Join(p.procfs, "1/root")
	first, err := os.Stat(path + "/")
	if err != nil {
		return ""
	}
	for _, dir := range []string{p.rootfs, "/"} {
		if info, err := os.Stat(dir); err != nil || os.SameFile(info, first) {
			return ""
		}
	}
	return path
}

// blame has the remedies of what fails below a path that is wrong point there.
func blame(wrong, findings []finding, p paths) {
	values := map[string]string{"--path.procfs": p.procfs, "--path.sysfs": p.sysfs, "--path.rootfs": p.rootfs}
	for i := range findings {
		f := &findings[i]
		for _, w := range wrong {
			if w.Outcome == outcomeFails && f.Remedy != "" && strings.Contains(" "+f.Detail, " "+values[w.What]) {
				f.Remedy = "see " + w.What
			}
		}
	}
}

func logPaths(log *slog.Logger, p paths) {
	for _, f := range wrongPaths(p) {
		log.Warn("path does not lead to the node", "flag", f.What, "err", f.Detail, "remedy", f.Remedy)
	}
}

// Package testtree makes a machine out of files, for tests of what reads procfs and
// sysfs.
package testtree

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Tree is a machine with 8 GiB of memory of which 6 are available, 4 CPUs, 200 tasks
// of 32768, and cgroup v2. Its filesystems are those that the test runs on.
type Tree struct {
	// Dir has the directories proc, sys and root.
	Dir string

	t testing.TB
}

const (
	bootID = "0f3c1f0e-5f1c-4a53-9d0c-2f5ab8a1e001"
	stalls = "some avg10=1.50 avg60=0.75 avg300=0.25 total=1500000\nfull avg10=0.50 avg60=0.25 avg300=0.00 total=500000\n"
)

// Meminfo is a /proc/meminfo with so many KiB available, and 2 GiB in use.
func Meminfo(availableKiB string) string { return meminfo(availableKiB, 2<<20) }

// MemoryInUse is a /proc/meminfo with so many KiB in use, none of them cache that could
// be dropped.
func MemoryInUse(kib int) string { return meminfo("6291456", kib) }

func meminfo(availableKiB string, anonKiB int) string {
	return "MemTotal:        8388608 kB\nMemFree:         1048576 kB\nMemAvailable:    " + availableKiB +
		" kB\nBuffers:               0 kB\nCached:                0 kB\nSwapCached:            0 kB\nInactive(file):        0 kB\n" +
		"SwapTotal:       1048576 kB\nSwapFree:        1048576 kB\n" + fmt.Sprintf("AnonPages: %10d kB\n", anonKiB)
}

// WithoutUsage is a /proc/meminfo that does not have how much is in use.
func WithoutUsage(meminfo string) string { return strings.Replace(meminfo, "AnonPages", "Other", 1) }

// Files are the contents of the files of a Tree, by path.
func Files() map[string]string {
	return map[string]string{
		"proc/meminfo":                   Meminfo("6291456"),
		"proc/loadavg":                   "0.20 0.18 0.12 1/200 11206\n",
		"proc/stat":                      "cpu  1018 20 503 99321 204 7 11 3 5 0\n",
		"proc/vmstat":                    "nr_free_pages 262144\noom_kill 3\n",
		"proc/pressure/cpu":              stalls,
		"proc/pressure/memory":           stalls,
		"proc/pressure/io":               stalls,
		"proc/sys/kernel/pid_max":        "32768\n",
		"proc/sys/kernel/threads-max":    "63000\n",
		"proc/sys/kernel/random/boot_id": bootID + "\n",
		"proc/1/mountinfo":               "1 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n",
		"proc/self/status":               "Name:\tnodeprobe\nCapEff:\t000000c000000000\n",
		"sys/fs/cgroup/memory.stat":      "anon 0\n", // only looked for
		"sys/devices/system/cpu/online":  "0-3\n",
		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "8\n",
		"sys/kernel/btf/vmlinux":                                strings.Repeat("x", 4096),
		"root/etc/machine-id":                                   "0123456789abcdef0123456789abcdef\n",
		"root/etc/os-release":                                   "NAME=Test\nPRETTY_NAME=\"Test Linux 1\"\n",
	}
}

// New writes a Tree with changes to Files; "" leaves a file out. The test's end removes
// it.
func New(t testing.TB, changes map[string]string) *Tree {
	t.Helper()
	tr := &Tree{t: t, Dir: t.TempDir()}
	files := Files()
	maps.Copy(files, changes)
	for name, content := range files {
		if content != "" {
			tr.Write(name, content)
		}
	}
	return tr
}

// Write keeps the inode: a sampler holds its files open. It does not truncate the file
// first, which a sampler at work would see.
func (tr *Tree) Write(name, content string) {
	tr.t.Helper()
	path := filepath.Join(tr.Dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tr.t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		tr.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(content); err != nil {
		tr.t.Fatal(err)
	}
	if err := f.Truncate(int64(len(content))); err != nil {
		tr.t.Fatal(err)
	}
}

// Procfs is its /proc.
func (tr *Tree) Procfs() string { return filepath.Join(tr.Dir, "proc") }

// Sysfs is its /sys.
func (tr *Tree) Sysfs() string { return filepath.Join(tr.Dir, "sys") }

// Rootfs is its /.
func (tr *Tree) Rootfs() string { return filepath.Join(tr.Dir, "root") }

// HangingFile puts a file whose opening hangs in the place of path. Answer ends that for
// every open of it, and gives the file a text.
func HangingFile(t testing.TB, path string) (answer func(text string)) {
	t.Helper()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return func(text string) {
		t.Helper()
		fifo, err := os.OpenFile(path, os.O_RDWR, 0) // which waits for nobody
		if err != nil {
			t.Fatal(err)
		}
		defer fifo.Close()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree is a machine made of files: 8 GiB of memory of which 6 are available, 4
// CPUs, 200 tasks of 32768, cgroup v2. Its filesystems are those of the machine
// that the test runs on.
type tree struct {
	t   *testing.T
	dir string
}

const (
	treeBootID = "0f3c1f0e-5f1c-4a53-9d0c-2f5ab8a1e001"
	stalls     = "some avg10=1.50 avg60=0.75 avg300=0.25 total=1500000\nfull avg10=0.50 avg60=0.25 avg300=0.00 total=500000\n"
)

func meminfo(availableKiB string) string { return meminfoWith(availableKiB, 2<<20) }

// memoryInUse is meminfo with so many KiB in use, none of them cache that could be
// dropped.
func memoryInUse(kib int) string { return meminfoWith("6291456", kib) }

func meminfoWith(availableKiB string, anonKiB int) string {
	return "MemTotal:        8388608 kB\nMemFree:         1048576 kB\nMemAvailable:    " + availableKiB +
		" kB\nBuffers:               0 kB\nCached:                0 kB\nSwapCached:            0 kB\nInactive(file):        0 kB\n" +
		"SwapTotal:       1048576 kB\nSwapFree:        1048576 kB\n" + fmt.Sprintf("AnonPages: %10d kB\n", anonKiB)
}

// withoutUsage is meminfo that does not tell how much is in use.
func withoutUsage(meminfo string) string { return strings.Replace(meminfo, "AnonPages", "Other", 1) }

func treeFiles() map[string]string {
	return map[string]string{
		"proc/meminfo":                   meminfo("6291456"),
		"proc/loadavg":                   "0.20 0.18 0.12 1/200 11206\n",
		"proc/vmstat":                    "nr_free_pages 262144\noom_kill 3\n",
		"proc/pressure/cpu":              stalls,
		"proc/pressure/memory":           stalls,
		"proc/pressure/io":               stalls,
		"proc/sys/kernel/pid_max":        "32768\n",
		"proc/sys/kernel/threads-max":    "63000\n",
		"proc/sys/kernel/random/boot_id": treeBootID + "\n",
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

// newTree writes the files, with changes: "" leaves a file out.
func newTree(t *testing.T, changes map[string]string) *tree {
	t.Helper()
	tr := &tree{t: t, dir: t.TempDir()}
	files := treeFiles()
	maps.Copy(files, changes)
	for name, content := range files {
		if content != "" {
			tr.write(name, content)
		}
	}
	return tr
}

// write keeps the inode: the sampler holds its files open. It does not empty the file
// first, which a sampler at work would see.
func (tr *tree) write(name, content string) {
	tr.t.Helper()
	path := filepath.Join(tr.dir, name)
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

func (tr *tree) paths() paths {
	return paths{filepath.Join(tr.dir, "proc"), filepath.Join(tr.dir, "sys"), filepath.Join(tr.dir, "root")}
}

// flags are those that lead a command to the tree.
func (tr *tree) flags() []string {
	p := tr.paths()
	return []string{"--path.procfs=" + p.procfs, "--path.sysfs=" + p.sysfs, "--path.rootfs=" + p.rootfs}
}

const header = "apiVersion: nodeprobe.dev/v1alpha1\nkind: NodeProbeConfiguration\n"

// writeConfig writes a configuration without BPF, whose fields are given. Its
// thresholds do not depend on how full the machine's own disk is, nor its name on
// a resolver: it is its own address.
func writeConfig(t *testing.T, fields string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	text := header + "bpf: \"off\"\nnodeName: 192.0.2.7\n"
	if !strings.Contains(fields, "evictionHard") {
		text += "evictionHard: {nodefs.available: 1Ki, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}\n"
	}
	if err := os.WriteFile(path, []byte(text+fields), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

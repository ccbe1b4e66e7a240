package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

func TestChoose(t *testing.T) {
	if got, err := choose(nil); err != nil || len(got) != len(all) {
		t.Errorf("without names: %v, %v", got, err)
	}
	got, err := choose([]string{"arm64-6.1", "amd64-6.12"})
	if err != nil || len(got) != 2 || got[0].String() != "arm64-6.1" || got[1].suite != "trixie-security" {
		t.Errorf("by name: %v, %v", got, err)
	}
	if _, err := choose([]string{"arm64-6"}); err == nil || !strings.Contains(err.Error(), "amd64-6.12") {
		t.Errorf("an unknown one: %v", err)
	}
}

// readCPIO is the other side of writeCPIO, as the kernel's documentation has it
// (driver-api/early-userspace/buffer-format). Directories end in a slash.
func readCPIO(t *testing.T, data []byte) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for at := 0; ; {
		if string(data[at:at+6]) != "070701" {
			t.Fatalf("no entry at %d: %q", at, data[at:at+6])
		}
		field := func(n int) int {
			v := must.Get(strconv.ParseUint(string(data[at+6+8*n:at+14+8*n]), 16, 32))(t)
			return int(v)
		}
		mode, size, nameSize := field(1), field(6), field(11)
		name := string(data[at+110 : at+110+nameSize-1])
		begin := (at + 110 + nameSize + 3) &^ 3
		if name == "TRAILER!!!" {
			return found
		}
		if mode&0o170000 == 0o040000 {
			name += "/"
		}
		found[name] = string(data[begin : begin+size])
		at = (begin + size + 3) &^ 3
	}
}

func TestCPIO(t *testing.T) {
	from := filepath.Join(t.TempDir(), "from")
	must.OK(t, os.WriteFile(from, []byte("12345"), 0o600))
	var b bytes.Buffer
	files := []file{{name: "/init", from: from}, {name: "/a/b/c", data: []byte("x")}, {name: "/a/d"}}
	must.OK(t, writeCPIO(&b, files, []string{"/proc", "/a"}))
	want := map[string]string{"proc/": "", "a/": "", "a/b/": "", "init": "12345", "a/b/c": "x", "a/d": ""}
	if got := readCPIO(t, b.Bytes()); !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := writeCPIO(io.Discard, []file{{name: "/x", from: from + "x"}}, nil); err == nil {
		t.Error("a missing file is no error")
	}
}

// elfWith returns the smallest object file with a section .modinfo.
func elfWith(modinfo string) []byte {
	var b bytes.Buffer
	u16 := func(v ...byte) { b.Write(v) }
	u64 := func(v int) { b.Write([]byte{byte(v), byte(v >> 8), 0, 0, 0, 0, 0, 0}) }
	const names = "\x00.modinfo\x00.shstrtab\x00"
	b.WriteString("\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9))
	u16(1, 0, 62, 0, 1, 0, 0, 0)        // relocatable, x86-64, version
	u64(0)                              // entry
	u64(0)                              // program headers
	u64(64 + len(names) + len(modinfo)) // section headers
	u16(0, 0, 0, 0, 64, 0, 0, 0, 0, 0)  // flags, sizes
	u16(64, 0, 3, 0, 2, 0)              // size and number of section headers, names
	b.WriteString(names + modinfo)
	section := func(name, kind byte, offset, size int) {
		u16(name, 0, 0, 0, kind, 0, 0, 0)
		for _, v := range []int{0, 0, offset, size, 0, 0, 0} {
			u64(v)
		}
	}
	section(0, 0, 0, 0)
	section(1, 1, 64+len(names), len(modinfo))
	section(10, 3, 64, len(names))
	return b.Bytes()
}

func TestModulesInOrder(t *testing.T) {
	tree, to := t.TempDir(), t.TempDir()
	for name, depends := range map[string]string{
		"net/virtio-net.ko": "virtio,built-in", "virtio.ko": "virtio_ring", "virtio_ring.ko": "", "other.ko": "",
	} {
		path := filepath.Join(tree, "kernel", name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.OK(t, os.WriteFile(path, elfWith("license=GPL\x00depends="+depends+"\x00name=x\x00"), 0o600))
	}
	must.OK(t, os.WriteFile(filepath.Join(tree, "modules.builtin"), []byte("kernel/built-in.ko\n"), 0o600))
	must.OK(t, takeModules(t.Context(), tree, to, []string{"virtio_net", "built_in", "virtio"}))
	entries := must.Get(os.ReadDir(to))(t)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if want := []string{"01-virtio_ring.ko", "02-virtio.ko", "03-virtio_net.ko"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := takeModules(t.Context(), tree, to, []string{"nowhere"}); err == nil {
		t.Error("a missing module is no error")
	}
}

// verdict judges results that are good but for one change.
func verdict(t *testing.T, change func(files map[string]string, d *diary)) []string {
	t.Helper()
	files := map[string]string{
		"/proc/sys/kernel/osrelease":           "6.1.0-56-cloud-amd64\n",
		"/proc/meminfo":                        "MemTotal:         1000 kB\nMemFree: 1 kB\n",
		"/proc/vmstat":                         "nr_free_pages 1\noom_kill 3\n",
		outputName("bpf tests", "stdout"):      "\x16=== RUN   TestA\n\x16--- PASS: TestA (0.00s)\n\x16=== RUN   TestB\n    b_test.go:1: exec: \"clang\": executable file not found in $PATH\n\x16--- SKIP: TestB (0.00s)\n\x16PASS\n",
		outputName("preflight", "stdout"):      "ok  kernel\n",
		outputName("snapshot", "stdout"):       goodSnapshot,
		outputName("preflight json", "stdout"): goodPreflight(),
	}
	d := diary{Steps: []outcome{{Name: "bpf tests"}}}
	if change != nil {
		change(files, &d)
	}
	res := &results{diary: d, files: make(map[string][]byte)}
	for name, text := range files {
		res.files[name] = []byte(text)
	}
	r := &report{kernel: all[0]}
	if err := r.judge(context.WithoutCancel(t.Context()), res); err != nil {
		return []string{err.Error()}
	}
	return r.failures
}

func goodPreflight() string {
	var findings []map[string]string
	for _, what := range mustFind {
		findings = append(findings, map[string]string{"what": what, "outcome": "ok", "detail": "v2 at /sys/fs/cgroup"})
	}
	text, err := json.Marshal(findings)
	if err != nil {
		panic(err)
	}
	return string(text)
}

const goodSnapshot = `{
  "snapshot": {
    "tier": "bpf",
    "signals": [
      {"name": "memory.available", "available": 900000, "capacity": 1024000},
      {"name": "nodefs.available", "available": 1, "capacity": 2},
      {"name": "pid.available", "available": 1, "capacity": 2}
    ],
    "conditions": [{"type": "MemoryPressure", "status": "False"}],
    "pressure": [{"resource": "cpu", "full": {}}, {"resource": "memory", "full": {}}, {"resource": "io", "full": {}}],
    "memory": {"total": 1024000, "memAvailable": 800000, "workingSet": 124000},
    "tasks": {"total": 60, "max": 7000},
    "oomKills": 3,
    "kernel": {"oomKills": 0, "directReclaims": 0, "cgroupReclaims": 0, "blockErrors": 0}
  },
  "node": {"status": {"nodeInfo": {"kernelVersion": "6.1.0-56-cloud-amd64", "architecture": "amd64"}}}
}`

func TestJudge(t *testing.T) {
	if got := verdict(t, nil); got != nil {
		t.Fatalf("good results: %q", got)
	}
	replace := func(name, old, text string) func(map[string]string, *diary) {
		return func(files map[string]string, _ *diary) {
			if !strings.Contains(files[name], old) {
				t.Fatalf("no %q in %s", old, name)
			}
			files[name] = strings.Replace(files[name], old, text, 1)
		}
	}
	tests, preflight, snapshot := outputName("bpf tests", "stdout"), outputName("preflight json", "stdout"), outputName("snapshot", "stdout")
	for name, tt := range map[string]struct {
		change func(map[string]string, *diary)
		want   string
	}{
		"step failed":     {func(_ map[string]string, d *diary) { d.Steps[0].Exit, d.Steps[0].Error = 2, "exit status 2" }, "exit status 2"},
		"setup failed":    {func(_ map[string]string, d *diary) { d.Setup = []string{"no disk"} }, "no disk"},
		"other kernel":    {replace("/proc/sys/kernel/osrelease", "6.1.", "6.12."), "release 6.12.0"},
		"test failed":     {replace(tests, "PASS: TestA", "FAIL: TestA"), "TestA"},
		"test skipped":    {replace(tests, "exec: \"clang\": executable file not found in $PATH", "no BTF"), "TestB was skipped: b_test.go:1: no BTF"},
		"test panicked":   {replace(tests, "\x16--- SKIP: TestB (0.00s)\n\x16PASS", "panic: oops\n"), "TestB"},
		"no tests":        {func(files map[string]string, _ *diary) { files[tests] = "" }, "none passed"},
		"hook missing":    {replace(preflight, `"outcome":"ok"`, `"outcome":"missing"`), "preflight: missing"},
		"cgroup v1":       {replace(preflight, `{"detail":"v2 at /sys/fs/cgroup","outcome":"ok","what":"memory cgroup"}`, `{"detail":"v1","outcome":"ok","what":"memory cgroup"}`), "not v2"},
		"not looked at":   {replace(preflight, `CAP_BPF`, `CAP_X`), "says nothing of CAP_BPF"},
		"no JSON":         {replace(preflight, `[`, ``), "read preflight"},
		"memory missing":  {replace(snapshot, `"available": 900000, `, ``), "no memory.available"},
		"memory too much": {replace(snapshot, `900000`, `2000000`), "memory.available 2000000"},
		"other capacity":  {replace(snapshot, `"capacity": 1024000`, `"capacity": 1024001`), "MemTotal 1024000"},
		"no stall":        {replace(snapshot, `{"resource": "io", "full": {}}`, `{"resource": "cpu", "full": {}}`), "PSI of"},
		"no OOM kills":    {replace(snapshot, `"oomKills": 3,`, ``), "no OOM kills"},
		"kills differ":    {replace(snapshot, `"oomKills": 3,`, `"oomKills": 2,`), "2 OOM kills"},
		"no counters":     {replace(snapshot, `"blockErrors": 0`, `"x": 0`), "lacks counters"},
		"pressure":        {replace(snapshot, `"False"`, `"True"`), "MemoryPressure True"},
		"tier":            {replace(snapshot, `"bpf"`, `"psi"`), "tier psi"},
		"error":           {replace(snapshot, `"tier"`, `"errors": [{"source": "node", "error": "oops"}], "tier"`), "node: oops"},
	} {
		t.Run(name, func(t *testing.T) {
			got := verdict(t, tt.change)
			if !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, tt.want) }) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

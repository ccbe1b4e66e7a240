package main

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/config"
	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

// normal replaces what differs from one machine, or one run, to the next.
func normal(tr *testtree.Tree, text string) string {
	var uts unix.Utsname
	_ = unix.Uname(&uts)
	for _, r := range []struct{ pattern, with string }{
		{regexp.QuoteMeta(tr.Dir), "TREE"},
		{regexp.QuoteMeta(unix.ByteSliceToString(uts.Release[:])), "KERNEL"},
		{`\b` + runtime.GOARCH + `\b`, "ARCH"},
		{`\d{4}-\d\d-\d\dT[\d:.]+(Z|[-+]\d\d:\d\d)`, "TIME"},
		{`\b\d\d:\d\d:\d\d\b`, "hh:mm:ss"},
		{`("?took"?: )"?[\d.]+(ns|µs|ms|s)"?`, "${1}TOOK"},
		// The filesystem that the tests run on, whose figures also decide how wide
		// the columns are.
		{`((?:nodefs|imagefs)\.\w+ +)[^\n]*`, "${1}..."},
		{`(ephemeral-storage(?::| +capacity) ).*`, "${1}SIZE"},
		{regexp.QuoteMeta(version()), "VERSION"},
	} {
		text = regexp.MustCompile(r.pattern).ReplaceAllString(text, r.with)
	}
	return text
}

// stripFilesystems removes the figures of the filesystem that the tests run on.
func stripFilesystems(t *testing.T, out map[string]any) {
	t.Helper()
	snapshot := out["snapshot"].(map[string]any)
	for _, s := range snapshot["signals"].([]any) {
		if signal := s.(map[string]any); strings.Contains(signal["name"].(string), "fs.") {
			delete(signal, "available")
			delete(signal, "capacity")
			delete(signal, "limit")
		}
	}
}

func TestSnapshotGolden(t *testing.T) {
	tr := testtree.New(t, nil)
	file := writeConfig(t, "")
	snapshotAs := func(output string) string {
		got := command(t, append(flags(tr), "snapshot", "--for", "0s", "--config", file, "-o", output)...)
		if got.code != 0 || got.stderr != "" {
			t.Fatalf("-o %s: %+v", output, got)
		}
		return got.stdout
	}
	spaces := regexp.MustCompile(`  +`)
	golden(t, "snapshot.table", spaces.ReplaceAllString(normal(tr, snapshotAs("table")), "  "))

	// JSON and YAML say the same, so one file is enough.
	var fromJSON, fromYAML map[string]any
	if err := json.Unmarshal([]byte(snapshotAs("json")), &fromJSON); err != nil {
		t.Fatal(err)
	}
	stripFilesystems(t, fromJSON)
	text, err := yaml.Marshal(fromJSON)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "snapshot.yaml", normal(tr, string(text)))

	if err := yaml.Unmarshal([]byte(snapshotAs("yaml")), &fromYAML); err != nil {
		t.Fatal(err)
	}
	stripFilesystems(t, fromYAML)
	again, err := yaml.Marshal(fromYAML)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(normal(tr, string(text)), normal(tr, string(again))); diff != "" {
		t.Errorf("(-json +yaml):\n%s", diff)
	}
}

// Two runs print the same keys in the same order.
func TestSnapshotOrder(t *testing.T) {
	tr := testtree.New(t, nil)
	file := writeConfig(t, "")
	digits := regexp.MustCompile(`\d+`)
	for _, output := range []string{"table", "yaml", "json"} {
		var first string
		for i := range 3 {
			got := command(t, append(flags(tr), "snapshot", "--for", "0s", "--config", file, "-o", output)...)
			text := digits.ReplaceAllString(normal(tr, got.stdout), "N")
			if i == 0 {
				first = text
			} else if diff := cmp.Diff(first, text); diff != "" {
				t.Errorf("-o %s, run %d:\n%s", output, i, diff)
			}
		}
	}
}

func TestSnapshotExitCodes(t *testing.T) {
	for _, test := range []struct {
		name    string
		changes map[string]string
		fields  string
		code    int
		stderr  string
		stdout  []string
	}{
		{name: "all there"},
		{
			name: "no PSI", changes: map[string]string{"proc/pressure/cpu": "", "proc/pressure/memory": "", "proc/pressure/io": ""},
			stdout: []string{"tier procfs (BPF is turned off by configuration; PSI is turned off: boot with psi=1 (Linux 4.20, CONFIG_PSI))\n"},
		},
		{
			name: "one PSI file is gone", changes: map[string]string{"proc/pressure/cpu": ""},
			code: exitIncomplete, stderr: "nodeprobe: not everything could be read; see the errors in the output\n",
			stdout: []string{"! pressure_cpu: open TREE/proc/pressure/cpu: no such file or directory\n"},
		},
		{
			name: "no memory", changes: map[string]string{"proc/meminfo": ""},
			code: exitIncomplete, stderr: "nodeprobe: not everything could be read; see the errors in the output\n",
			stdout: []string{
				"MemoryPressure               Unknown  ", "a signal cannot be read\n",
				"memory.available             ?          ?         100Mi  ?           ?\n",
			},
		},
		{
			name: "under pressure", changes: map[string]string{"proc/meminfo": testtree.MemoryInUse(8369140)},
			stdout: []string{"MemoryPressure               True    ", "memory.available<100Mi\n"},
		},
		{
			name: "threshold above the capacity", fields: "evictionHard: {pid.available: 40k}\n",
			stderr: "nodeprobe: pid.available: threshold 40k is above the capacity 32768: the condition would always be true\n",
			stdout: []string{"PIDPressure                  True    "},
		},
		{
			name: "more reserved than there is", fields: "systemReserved: {memory: 9Gi}\n",
			code: exitIncomplete, stderr: "nodeprobe: not everything could be read; see the errors in the output\n",
			stdout: []string{`! resources: invalid Node Allocatable configuration. Resource "memory" has a reservation of 9316Mi but capacity of 8Gi. Expected capacity >= reservation.` + "\n"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := testtree.New(t, test.changes)
			got := command(t, append(flags(tr), "snapshot", "--for", "0s", "--config", writeConfig(t, test.fields))...)
			if got.code != test.code || !strings.HasSuffix(got.stderr, test.stderr) || (test.stderr == "") != (got.stderr == "") {
				t.Errorf("exit code %d, want %d; %s", got.code, test.code, got.stderr)
			}
			text := strings.ReplaceAll(got.stdout, tr.Dir, "TREE")
			for _, want := range test.stdout {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in\n%s", want, text)
				}
			}
			for line := range strings.Lines(text) {
				if strings.HasSuffix(line, " \n") {
					t.Errorf("white space at the end of %q", line)
				}
			}
		})
	}
}

// On this machine, whatever it is, the output agrees with /proc.
func TestSnapshotOfThisMachine(t *testing.T) {
	got := command(t, "snapshot", "-o", "json")
	if got.code != 0 && got.code != exitIncomplete {
		t.Fatalf("got %+v", got)
	}
	var out struct {
		Snapshot struct{ Memory struct{ Total int64 } }
		Node     v1.Node
	}
	if err := json.Unmarshal([]byte(got.stdout), &out); err != nil {
		t.Fatal(err)
	}
	mem, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Skip(err)
	}
	fields := bytes.Fields(mem)
	total, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if c := out.Node.Status.Capacity.Memory(); c.Value() != total*1024 || out.Snapshot.Memory.Total != c.Value() {
		t.Errorf("memory: Node %s, snapshot %d, /proc %d KiB", c, out.Snapshot.Memory.Total, total)
	}
	bootID, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	info := out.Node.Status.NodeInfo
	if info.BootID != strings.TrimSpace(string(bootID)) || info.KubeletVersion != version() || info.KernelVersion == "" {
		t.Errorf("got %+v", info)
	}
	if out.Node.Kind != "Node" || out.Node.APIVersion != "v1" || out.Node.Name == "" || len(out.Node.Status.Conditions) != 4+3 { // three defaults repeat no verdict
		t.Errorf("not the whole Node: %+v", out.Node)
	}
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods, v1.ResourceEphemeralStorage} {
		if _, ok := out.Node.Status.Allocatable[name]; !ok {
			t.Errorf("nothing allocatable of %s", name)
		}
	}
}

// A snapshot of a machine that is running out of memory shows when.
func TestSnapshotTellsTimeToLimit(t *testing.T) {
	tr := testtree.New(t, nil)
	loaded, err := config.Load(config.Files{Own: writeConfig(t, "")})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		for i := range 20 { // 2.5 GiB/s, and never at the time of a sample
			time.AfterFunc(time.Duration(50*i+25)*time.Millisecond, func() {
				tr.Write("proc/meminfo", testtree.MemoryInUse(2<<20+i<<17))
			})
		}
		var stdout bytes.Buffer
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.SetOut(&stdout)
		err := snapshot(cmd, loaded, pathsOf(tr), "json", time.Second)
		var out struct {
			Snapshot struct {
				Signals []struct{ Name, TimeToLimit string }
			}
		}
		if jsonErr := json.Unmarshal(stdout.Bytes(), &out); jsonErr != nil {
			t.Fatalf("%v, %v: %s", err, jsonErr, &stdout)
		}
		times := map[string]string{}
		for _, s := range out.Snapshot.Signals {
			times[s.Name] = s.TimeToLimit
		}
		if times["memory.available"] == "" || times["pid.available"] != "" {
			t.Errorf("times to limit: %v", times)
		}
	})
	if got := command(t, "snapshot", "--for", "-1s"); got.code != exitUsage || !strings.Contains(got.stderr, "--for: -1s is negative") {
		t.Errorf("a negative time: %+v", got)
	}
}

package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/probe/hotfile"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

	"github.com/google/go-cmp/cmp"
)

func TestCountList(t *testing.T) {
	for list, want := range map[string]int64{
		"0": 1, "0-3": 4, "0-3,8": 5, "0,2,4": 3, "0-1,4-5,8-9": 6, "7-7": 1, "0-65535": 65536, "8191": 1,
	} {
		if got, err := countList(list); got != want || err != nil {
			t.Errorf("%q: %d, %v; want %d", list, got, err, want)
		}
	}
	for _, list := range []string{
		"", ",", "0,", ",0", "-", "0-", "-3", "3-0", "0--3", "0-3-5", "0 - 3", " 0", "a", "0-f", "0x3", "+1",
		"0-65536", "4294967295", "4294967296", "0-18446744073709551615", "0-7:2/4",
		"0-65535,0-65535", // each is possible, both are not
		strings.Repeat("0-65535,", 1<<19) + "0",
	} {
		if got, err := countList(list); err == nil {
			t.Errorf("%.40q: %d, want an error", list, got)
		}
	}
}

func TestReadCPUs(t *testing.T) {
	const online = "sys/devices/system/cpu/online"
	for _, test := range []struct {
		name string
		machine
		want int64
		says string
	}{
		{name: "online", machine: machine{online: "0-3,6\n"}, want: 5},
		{name: "nothing", says: online},
		{name: "empty", machine: machine{online: ""}, says: online},
		{name: "cut", machine: machine{online: "0-1"}, says: `line "0-1"`},
		{name: "garbage", machine: machine{online: "none\n"}, says: `line "none"`},
		{name: "4 MiB", machine: machine{online: strings.Repeat("9", 4<<20) + "\n"}, says: `line "999`},
		{name: "directory", machine: machine{online + "/x": ""}, says: online},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := test.machine.boot(t)
			got, err := readCPUs(n.Path("sys"), func(string) {})
			if test.says == "" {
				if got != test.want || err != nil {
					t.Errorf("%d, %v; want %d", got, err, test.want)
				}
			} else if err == nil || !strings.Contains(err.Error(), test.says) || len(err.Error()) > 300 {
				t.Errorf("%d, %.300v; want an error that says %s", got, err, test.says)
			}
		})
	}
}

// A process that may use one CPU only, as one with taskset or a cpuset, sees the node's.
func TestCPUsAreNotAffinity(t *testing.T) {
	const inside = "NODEPROBE_AFFINITY"
	if os.Getenv(inside) != "" {
		s, err := New(realConfig())
		probetest.Must(t, err)
		defer s.Close()
		report(t, [2]int64{s.Sample().Capacity.CPUs, int64(runtime.NumCPU())})
		return
	}
	online, err := readCPUs("/sys", func(string) {})
	probetest.Must(t, err)
	if online < 2 {
		t.Skip("needs two CPUs")
	}
	if _, err := exec.LookPath("taskset"); err != nil {
		probetest.Lacking(t, "%v", err)
	}
	exe, err := os.Executable()
	probetest.Must(t, err)
	cmd := exec.CommandContext(t.Context(), "taskset", "--cpu-list", "0", exe, "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), inside+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if want := fmt.Sprintf("[%d,1]\n", online); !strings.HasPrefix(string(out), want) {
		t.Errorf("CPUs of the node, and of the process: %s, want %s", out, want)
	}
}

// takeHugePages reads the pools as a sample does.
func takeHugePages(c *Capacity, sysfs string) error {
	pools, err := readHugePages(sysfs, func(string) {})
	if pools != nil {
		c.setHugePages(pools)
	}
	return err
}

const hugepages = "sys/kernel/mm/hugepages/"

// pools returns the entries in use, after checking that the others are zero.
func pools(t *testing.T, c Capacity) []HugePages {
	t.Helper()
	for _, p := range c.HugePages[c.NumHugePages:] {
		if p != (HugePages{}) {
			t.Errorf("unused entry %+v", p)
		}
	}
	return c.HugePages[:c.NumHugePages]
}

func TestReadHugePages(t *testing.T) {
	const mi = 1 << 20
	two := machine{hugepages + "hugepages-1048576kB/nr_hugepages": "1\n", hugepages + "hugepages-2048kB/nr_hugepages": "512\n"}
	for _, test := range []struct {
		name string
		machine
		want []HugePages
		err  error
	}{
		{name: "by size, not by name", machine: two, want: []HugePages{{2 * mi, 512}, {1024 * mi, 1}}},
		{name: "an empty pool is one", machine: machine{hugepages + "hugepages-64kB/nr_hugepages": "0\n"}, want: []HugePages{{64 << 10, 0}}},
		{name: "no huge pages", want: []HugePages{}},
		{
			name: "one is missing", err: fs.ErrNotExist,
			machine: two.with(machine{hugepages + "hugepages-64kB/free_hugepages": "0\n"}), want: []HugePages{{2 * mi, 512}, {1024 * mi, 1}},
		},
		{
			name: "more bytes than there can be", err: hotfile.ErrRange,
			machine: machine{hugepages + "hugepages-2048kB/nr_hugepages": "4398046511104\n"}, want: []HugePages{},
		},
		{name: "negative", err: hotfile.ErrNegative, machine: machine{hugepages + "hugepages-2048kB/nr_hugepages": "-1\n"}, want: []HugePages{}},
		{name: "cut", err: hotfile.ErrCut, machine: machine{hugepages + "hugepages-2048kB/nr_hugepages": "51"}, want: []HugePages{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var c Capacity
			probetest.CheckError(t, takeHugePages(&c, test.machine.boot(t).Path("sys")), test.err)
			if d := cmp.Diff(test.want, pools(t, c)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestReadHugePagesNames(t *testing.T) {
	for _, name := range []string{"hugepages-kB", "hugepages-0kB", "hugepages--1kB", "hugepages-2048", "2048kB", "hugepages-2048kB.bak", "hugepages-99999999999999kB"} {
		var c Capacity
		err := takeHugePages(&c, machine{hugepages + name + "/nr_hugepages": "1\n"}.boot(t).Path("sys"))
		if err == nil || !strings.Contains(err.Error(), name) || c.NumHugePages != 0 {
			t.Errorf("%s: %d pools, %v", name, c.NumHugePages, err)
		}
	}
	many := machine{}
	for i := range MaxHugePageSizes + 1 {
		many[fmt.Sprintf("%shugepages-%dkB/nr_hugepages", hugepages, 4<<i)] = "1\n"
	}
	var c Capacity
	if err := takeHugePages(&c, many.boot(t).Path("sys")); err == nil || c.NumHugePages != 0 {
		t.Errorf("%d pools, %v", c.NumHugePages, err)
	}
}

// A pool that cannot be read for a while is still there: a node that dropped it
// from its capacity would have its pods evicted.
func TestReadHugePagesKeepsWhatItKnows(t *testing.T) {
	const path = hugepages + "hugepages-2048kB/nr_hugepages"
	n := machine{path: "512\n", hugepages + "hugepages-64kB/nr_hugepages": "1\n"}.boot(t)
	var c Capacity
	probetest.Must(t, takeHugePages(&c, n.Path("sys")))
	n.Write(t, path, "garbage\n")
	n.Write(t, hugepages+"hugepages-64kB/nr_hugepages", "2\n")
	probetest.CheckError(t, takeHugePages(&c, n.Path("sys")), hotfile.ErrNumber)
	want := []HugePages{{64 << 10, 2}, {2 << 20, 512}}
	if d := cmp.Diff(want, pools(t, c)); d != "" {
		t.Errorf("one pool is broken (-want +got):\n%s", d)
	}

	n.Remove(t, "sys/kernel/mm/hugepages")
	n.Write(t, "sys/kernel/mm/hugepages", "not a directory")
	if err := takeHugePages(&c, n.Path("sys")); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if d := cmp.Diff(want, pools(t, c)); d != "" {
		t.Errorf("the directory is broken (-want +got):\n%s", d)
	}
}

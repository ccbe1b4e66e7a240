package footprint

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

func TestReadSelf(t *testing.T) {
	before := must.Get(Read(os.Getpid()))(t)
	if before.RSS <= 0 || before.RSSAnon <= 0 || before.RSSAnon+before.RSSFile > before.RSS || before.CPU <= 0 || before.Switches <= 0 {
		t.Errorf("got %+v", before)
	}

	const busy = 50 * time.Millisecond
	for begin := before.CPU; ; {
		now := must.Get(Read(os.Getpid()))(t)
		if now.CPU-begin >= busy {
			break // The clock counts this loop, or the test runs into its timeout.
		}
	}
}

func TestCost(t *testing.T) {
	const mib = 1 << 20
	got := Cost{Scrapes: 4}.with([]Sample{
		{RSS: 9 * mib, RSSAnon: 5 * mib, RSSFile: 4 * mib, CPU: time.Second, Switches: 100},
		{RSS: 30 * mib, RSSAnon: 26 * mib, RSSFile: 4 * mib, CPU: time.Second, Switches: 150},
		{RSS: 10 * mib, RSSAnon: 6 * mib, RSSFile: 4 * mib, CPU: time.Second + 15*time.Millisecond, Switches: 190},
	}, 30*time.Second)
	want := Cost{
		RSS: 10 * mib, RSSMax: 30 * mib, RSSAnon: 6 * mib, RSSFile: 4 * mib,
		CPU: 30 * time.Millisecond, Wakeups: 3, Scrapes: 4,
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestReadMemory(t *testing.T) {
	const mib = 1 << 20
	v1, v2, empty := t.TempDir(), t.TempDir(), t.TempDir()
	for file, text := range map[string]string{
		v1 + "/memory.usage_in_bytes": "31457280\n", v1 + "/memory.stat": "cache 1\ninactive_file 1\ntotal_inactive_file 10485760\n",
		v2 + "/memory.current": "31457280\n", v2 + "/memory.stat": "anon 7\ninactive_file 41943040\n",
	} {
		must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	}
	for _, test := range []struct {
		cgroup          string
		charged, inWork int64
		err             bool
	}{
		{"", -1, -1, false},
		{v1, 30 * mib, 20 * mib, false},
		{v2, 30 * mib, 0, false}, // the two files are not of one moment
		{empty, -1, -1, true},
	} {
		m, err := ReadMemory(Subject{PID: os.Getpid(), Cgroup: test.cgroup})
		if m.Charged != test.charged || m.WorkingSet != test.inWork || (err != nil) != test.err {
			t.Errorf("%s: %+v, %v", test.cgroup, m, err)
		}
		if m.Anon < mib || m.File < mib || m.RSS != m.Anon+m.File || m.PSS < m.Anon || m.PSS > m.RSS || m.Locked != 0 {
			t.Errorf("got %+v", m)
		}
	}
}

func TestScanFigures(t *testing.T) {
	file := filepath.Join(t.TempDir(), "figures")
	for _, test := range []struct {
		text string
		want int64
		ok   bool
	}{
		{"Name:\tcat\n\nVmRSS:\t    9784 kB\nOther: 1 kB\n", 9784 << 10, true},
		{"VmRSS 12", 12, true},
		{"VmRSSx: 1\nVmRSS:\n", 0, false},
		{"VmRSS: many kB\n", 0, false},
		{"", 0, false}, // that of a process without memory: it has ended
	} {
		must.OK(t, os.WriteFile(file, []byte(test.text), 0o600))
		var got int64
		if err := scanFigures(file, map[string]*int64{"VmRSS": &got}); got != test.want || (err == nil) != test.ok {
			t.Errorf("%q: %d, %v", test.text, got, err)
		}
	}
}

func TestMissedScrape(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	var c Cost
	c.scrape(t, Subject{MetricsURL: server.URL})
	if c.Scrapes != 0 || c.Missed != 1 {
		t.Errorf("got %+v", c)
	}
}

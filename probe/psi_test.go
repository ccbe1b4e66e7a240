package probe

import (
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/hotfile"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

	"github.com/prometheus/client_golang/prometheus"
)

func TestParseStall(t *testing.T) {
	const some = "some avg10=0.00 avg60=0.10 avg300=2.35 total=184412\n"
	line := StallLine{Avg60: 0.001, Avg300: 0.0235, Total: 184412 * time.Microsecond}
	full := strings.Replace(some, "some", "full", 1)
	for _, test := range []struct {
		name, text string
		want       Stall
		err        error
		says       string
	}{
		{name: "both", text: some + full, want: Stall{Some: line, Full: line, OK: true, FullOK: true}},
		{name: "cpu before Linux 5.13", text: some, want: Stall{Some: line, OK: true}},
		{name: "in any order", text: full + "some total=184412 avg300=2.35 avg60=0.10 avg10=0.00\n", want: Stall{Some: line, Full: line, OK: true, FullOK: true}},
		{name: "lines and fields to come", text: "irq x=y\n" + strings.Replace(some, " total", " avg600=z p99 total", 1), want: Stall{Some: line, OK: true}},
		{name: "all the time", text: "some avg10=100.00 avg60=100.00 avg300=99.99 total=9223372036854775\n", want: Stall{
			Some: StallLine{Avg10: 1, Avg60: 1, Avg300: 0.9999, Total: math.MaxInt64 / 1000 * 1000}, OK: true,
		}},

		{name: "irq: no some", text: full, err: errNoSome},
		{name: "cut in a line that nobody wants", text: some + "ful", err: hotfile.ErrCut, says: `line "ful"`},
		{name: "cut in full", text: some + full[:30], err: hotfile.ErrCut, says: `line "full avg10=0`},
		{name: "field missing", text: "some avg10=0.00 avg60=0.10 total=1\n", err: errField, says: `line "some avg10=0.00 avg60=0.10 total=1"`},
		{name: "field twice and another missing", text: "some avg10=0.00 avg10=0.00 avg60=0.10 total=1\n", err: errField},
		{name: "no fields", text: "some\n", err: errField},
		{name: "no value", text: strings.Replace(some, "0.10", "", 1), err: hotfile.ErrNumber},
		{name: "negative share", text: strings.Replace(some, "0.10", "-0.10", 1), err: hotfile.ErrNegative},
		{name: "share above 1", text: strings.Replace(some, "0.10", "101.00", 1), err: hotfile.ErrRange},
		{name: "share of NaN", text: strings.Replace(some, "0.10", "NaN", 1), err: hotfile.ErrNumber},
		{name: "negative total", text: strings.Replace(some, "184412", "-1", 1), err: hotfile.ErrNegative},
		{name: "more time than a Duration holds", text: strings.Replace(some, "184412", "9223372036854776", 1), err: hotfile.ErrRange},
		{name: "total with a fraction", text: strings.Replace(some, "184412", "1.5", 1), err: hotfile.ErrNumber},
		{name: "broken full", text: some + "full avg10=0.00\n", err: errField, says: `line "full avg10=0.00"`},
		{name: "empty", text: "", err: hotfile.ErrEmpty},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseStall([]byte(test.text))
			if got != test.want || !errors.Is(err, test.err) || (err == nil) != (test.err == nil) {
				t.Errorf("%+v, %v; want %+v, %v", got, err, test.want, test.err)
			}
			if err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %q does not say %s", err, test.says)
			}
		})
	}
}

// What is left of a file that was cut is right or an error. That the line "full"
// is gone altogether cannot be told from a kernel without it.
func TestTruncatedStall(t *testing.T) {
	want, err := parseStall([]byte(stallText))
	probetest.Must(t, err)
	for i := range stallText {
		got, err := parseStall([]byte(stallText[:i]))
		if err == nil && (got.Some != want.Some || got.FullOK) {
			t.Errorf("%q is read as %+v", stallText[:i], got)
		}
	}
}

// turnedOff returns a file that can be opened, and answers each read as those of
// /proc/pressure do where PSI is compiled in but turned off (before Linux 5.10; later
// there is no such directory).
func turnedOff(t *testing.T) string {
	t.Helper()
	group := filepath.Join("/sys/fs/cgroup/unified", "nodeprobe-test-"+filepath.Base(t.TempDir())+time.Now().Format("150405.000000"))
	if _, err := os.Stat("/sys/fs/cgroup/unified"); err != nil {
		group = filepath.Join("/sys/fs/cgroup", filepath.Base(group))
	}
	if err := os.Mkdir(group, 0o755); err != nil {
		probetest.Lacking(t, "make cgroup: %v", err)
	}
	t.Cleanup(func() { os.Remove(group) })
	// Processes of a threaded cgroup are listed in its nearest domain only.
	if err := os.WriteFile(filepath.Join(group, "cgroup.type"), []byte("threaded"), 0); err != nil {
		probetest.Lacking(t, "make threaded cgroup: %v", err)
	}
	return filepath.Join(group, "cgroup.procs")
}

// A kernel that has no PSI, or has it turned off, has nothing that cannot be read:
// no error is counted, and it is said once.
func TestSampleWithoutPSI(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, n node){
		"no directory": func(t *testing.T, n node) { n.Remove(t, "proc/pressure") },
		"turned off": func(t *testing.T, n node) {
			off := turnedOff(t)
			for i := range NumResources {
				path := "proc/pressure/" + Resource(i).String()
				n.Remove(t, path)
				probetest.Must(t, os.Symlink(off, n.Path(path)))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := fullMachine.boot(t)
			spoil(t, n)
			var log strings.Builder
			reg := prometheus.NewRegistry()
			s := n.sampler(t, func(c *Config) {
				c.Registerer, c.Logger = reg, slog.New(slog.NewTextHandler(&log, nil))
			})
			want := fullSnapshot()
			for range 3 {
				got := *resample(s)
				for i := range NumResources {
					err := got.Pressure[i].Err
					probetest.CheckError(t, err, errors.ErrUnsupported)
					if !strings.Contains(probetest.ErrText(err), "psi=1") {
						t.Errorf("%v does not say what to do", err)
					}
					want.Pressure[i] = Stall{Err: err}
				}
				if d := diff(want, got); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
			}
			for _, line := range scrape(t, reg, "nodeprobe_sampler_read_errors_total") {
				if !strings.HasSuffix(line, " 0") {
					t.Error(line)
				}
			}
			if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), "level=INFO") {
				t.Errorf("logged, want one line:\n%s", log.String())
			}
			if n := testing.AllocsPerRun(100, func() { s.Sample() }); n != 0 {
				t.Errorf("%v allocations per sample, want 0", n)
			}

			// It is looked for again with what rarely changes.
			n.Remove(t, "proc/pressure")
			for i := range NumResources {
				n.Write(t, "proc/pressure/"+Resource(i).String(), stallText)
			}
			if d := diff(fullSnapshot(), *resample(s)); d != "" {
				t.Errorf("turned on (-want +got):\n%s", d)
			}
		})
	}
}

// A procfs that is not there, or lacks one file of the three, is no kernel without
// PSI.
func TestMissingPressureFileIsAnError(t *testing.T) {
	for name, n := range map[string]node{
		"one of three": fullMachine.without("proc/pressure/cpu").boot(t),
		"no procfs":    fullMachine.without("proc").boot(t),
	} {
		snap := n.sampler(t).Sample()
		for _, err := range []error{snap.Errors[SourcePressureCPU], snap.Pressure[CPU].Err} {
			probetest.CheckError(t, err, fs.ErrNotExist)
			if errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

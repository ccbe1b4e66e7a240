package footprint

import (
	"os"
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

package probe

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// sampleOrHang takes a sample, and ends the test if that takes for ever.
func sampleOrHang(t *testing.T, s *Sampler) *Snapshot {
	t.Helper()
	done := make(chan *Snapshot, 1)
	go func() { done <- s.Sample() }()
	select {
	case snap := <-done:
		return snap
	case <-time.After(30 * time.Second):
		t.Fatal("Sample has not returned within 30 s")
		return nil
	}
}

// fifo makes a file one whose opening hangs until somebody writes to it.
func (n node) fifo(t *testing.T, name string) {
	t.Helper()
	n.Write(t, name, "") // makes the directory
	n.Remove(t, name)
	probetest.Must(t, unix.Mkfifo(n.Path(name), 0o644))
	t.Cleanup(func() { n.answer(t, name, "") })
}

// answer lets those go on who have opened a fifo, and makes the file one that holds
// text.
func (n node) answer(t *testing.T, name, text string) {
	t.Helper()
	fd, err := unix.Open(n.Path(name), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	n.Remove(t, name)
	n.Write(t, name, text)
	if err == nil { // or nobody reads
		_, _ = unix.Write(fd, []byte(text)) // fails if it is a file by now
		unix.Close(fd)
	}
}

// rareFile is a file that a sample reads once a minute, what it is without that, and
// how it is then.
type rareFile struct {
	file   string
	others machine // "-" removes one
	source Source
	lose   func(*Snapshot)
}

var rareFiles = []rareFile{
	{file: "etc/machine-id", source: SourceMachine, lose: func(s *Snapshot) { s.Machine.MachineID = "" }},
	{
		file: "var/lib/dbus/machine-id", others: machine{"etc/machine-id": "-"}, source: SourceMachine,
		lose: func(s *Snapshot) { s.Machine.MachineID = "" },
	},
	{file: "etc/os-release", source: SourceMachine, lose: func(s *Snapshot) { s.Machine.OSImage = "" }},
	{
		file: "usr/lib/os-release", others: machine{"etc/os-release": "-"}, source: SourceMachine,
		lose: func(s *Snapshot) { s.Machine.OSImage = "" },
	},
	{file: "proc/sys/kernel/random/boot_id", source: SourceMachine, lose: func(s *Snapshot) { s.Machine.BootID = "" }},
	{
		file: "proc/device-tree/system-id", others: machine{"sys/class/dmi/id/product_uuid": "-"}, source: SourceMachine,
		lose: func(s *Snapshot) { s.Machine.SystemUUID = "" },
	},
	{
		file: "proc/device-tree/vm,uuid", others: machine{"sys/class/dmi/id/product_uuid": "-"}, source: SourceMachine,
		lose: func(s *Snapshot) { s.Machine.SystemUUID = "" },
	},
	{file: "sys/devices/system/cpu/online", source: SourceCPUs, lose: func(s *Snapshot) { s.Capacity.CPUs = 0 }},
	{
		file: hugepages + "hugepages-2048kB/nr_hugepages", source: SourceHugePages,
		lose: func(s *Snapshot) { s.Capacity.HugePages, s.Capacity.NumHugePages = [MaxHugePageSizes]HugePages{}, 0 },
	},
	{file: "proc/1/mountinfo", source: SourceMounts, lose: func(*Snapshot) {}},
}

// boot returns the machine with the file in it, and the text of that.
func (r rareFile) boot(t *testing.T) (n node, text string) {
	m := fullMachine
	for name, content := range r.others {
		if content == "-" {
			m = m.without(name)
		}
	}
	text = m[r.file]
	switch {
	case text != "":
	case strings.HasSuffix(r.file, "os-release"):
		text = fullMachine["etc/os-release"]
	case strings.HasSuffix(r.file, "machine-id"):
		text = fullMachine["etc/machine-id"]
	default:
		text = fullMachine["sys/class/dmi/id/product_uuid"]
	}
	return m.with(machine{r.file: text}).boot(t), text
}

// A file that hangs, such as one on a disk that does not answer, costs what it tells
// and nothing else: from the beginning on, or after it could be read.
func TestHungFile(t *testing.T) {
	brief := func(c *Config) { c.StatfsTimeout = 500 * time.Millisecond }
	for _, r := range rareFiles {
		t.Run(strings.ReplaceAll(r.file, "/", "."), func(t *testing.T) {
			t.Parallel() // it mostly waits
			n, text := r.boot(t)
			s := n.sampler(t, brief)
			waitFor(t, s, r.source)
			intact := s.current
			check := func(name string, snap *Snapshot, lose func(*Snapshot)) {
				t.Helper()
				err := snap.Errors[r.source]
				probetest.CheckError(t, err, deadline.ErrNoAnswer)
				if err != nil && (!strings.Contains(err.Error(), n.Path(r.file)) || !strings.Contains(err.Error(), "within 500ms")) {
					t.Errorf("%s: %v does not name the file and the deadline", name, err)
				}
				want := intact
				want.Errors[r.source] = err
				lose(&want)
				if d := diff(want, *snap); d != "" {
					t.Errorf("%s (-want +got):\n%s", name, d)
				}
			}
			mended := func(s *Sampler) {
				t.Helper()
				n.answer(t, r.file, text)
				waitFor(t, s, r.source)
				if d := diff(intact, s.current); d != "" {
					t.Errorf("mended (-want +got):\n%s", d)
				}
			}

			n.fifo(t, r.file)
			fresh := n.sampler(t, brief)
			check("from the beginning", sampleOrHang(t, fresh), r.lose)
			mended(fresh)
			n.fifo(t, r.file)
			s.machineRead = time.Time{}
			check("later", sampleOrHang(t, s), func(*Snapshot) {})
			check("later still", sampleOrHang(t, s), func(*Snapshot) {})
			mended(s)
			n.fifo(t, r.file)
			s.machineRead = time.Time{}
			check("again", sampleOrHang(t, s), func(*Snapshot) {})
			mended(s)
		})
	}
}

// waitFor samples until a source can be read.
func waitFor(t *testing.T, s *Sampler, source Source) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); sampleOrHang(t, s).Errors[source] != nil; {
		if time.Now().After(end) {
			t.Fatalf("cannot be read within 30 s: %v", s.current.Errors[source])
		}
	}
}

// A disk that hangs for real, in the kernel, as the node's root.
func TestRealHungDisk(t *testing.T) {
	n := fullMachine.without("etc").boot(t)
	probetest.Must(t, os.Mkdir(n.Path("etc"), 0o755))
	f := probetest.NewFUSE(t, n.Path("etc"))
	s := n.sampler(t, func(c *Config) { c.StatfsTimeout = 500 * time.Millisecond })
	f.SetSilent(true)
	for range 10 {
		s.machineRead = time.Time{}
		snap := sampleOrHang(t, s)
		probetest.CheckError(t, snap.Errors[SourceMachine], deadline.ErrNoAnswer)
		want := fullSnapshot()
		want.Machine.MachineID, want.Machine.OSImage = "", ""
		want.Errors[SourceMachine] = snap.Errors[SourceMachine]
		if d := diff(want, *snap); d != "" {
			t.Errorf("hung (-want +got):\n%s", d)
		}
	}
	for end := time.Now().Add(30 * time.Second); f.Unanswered() == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // a busy machine has not made the call yet
	}
	if n := f.Unanswered(); n < 1 || n > 2 { // the kernel may look for one file at a time
		t.Errorf("%d calls hang, want one for each file", n)
	}
	f.SetSilent(false) // it knows no files, and says so
	for end := time.Now().Add(30 * time.Second); errors.Is(sampleOrHang(t, s).Errors[SourceMachine], deadline.ErrNoAnswer); {
		if time.Now().After(end) {
			t.Fatal("no answer within 30 s")
		}
	}
	probetest.CheckError(t, s.current.Errors[SourceMachine], unix.ENOSYS)
}

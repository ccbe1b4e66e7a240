package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// scene is a Sampler on a node of the test's making.
type scene struct {
	*Sampler
	t    *testing.T
	logs strings.Builder

	mu      sync.Mutex
	mounted []string       // handles
	data    map[string]any // an error, or another handle, in the handle's file
	tables  [][]string     // what the next reads of the table find instead
	table   error          // why it cannot be read
	gate    chan struct{}  // reads of files wait for it, unless it is nil
	reads   int            // of files
	reg     *prometheus.Registry
}

func newScene(t *testing.T) *scene {
	v := &scene{t: t, data: map[string]any{}, reg: prometheus.NewRegistry()}
	var err error
	v.Sampler, err = New(Config{
		Procfs: "/proc", Rootfs: "/", RootDirectory: "/var/lib/kubelet",
		Logger: slog.New(slog.NewTextHandler(&v.logs, nil)), Registerer: v.reg,
	})
	probetest.Must(t, err)
	v.mounts, v.read = v.findMounts, v.readFile
	return v
}

func (v *scene) findMounts() ([]volumeMount, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	mounted := v.mounted
	if len(v.tables) > 0 {
		mounted, v.tables = v.tables[0], v.tables[1:]
	}
	var mounts []volumeMount
	for _, handle := range mounted {
		mounts = append(mounts, volumeMount{line: handle + " line", data: handle})
	}
	return sortMounts(mounts), v.table
}

func (v *scene) readFile(path string) (Volume, bool, error) {
	v.mu.Lock()
	v.reads++
	gate, content := v.gate, v.data[path]
	v.mu.Unlock()
	if gate != nil {
		<-gate
	}
	if err, bad := content.(error); bad {
		return Volume{}, false, err
	}
	return Volume{"d", path}, content != "none", nil
}

// set changes the node.
func (v *scene) set(change func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change()
}

// want samples, and checks what is known then: the handles, and "partial" or not.
func (v *scene) want(name, want string) {
	v.t.Helper()
	if got := describe(v.Sample(v.t.Context())); got != want {
		v.t.Errorf("%s: got %s, want %s", name, got, want)
	}
}

// scrape returns the values of the metrics whose names begin with prefix.
func scrape(t *testing.T, reg *prometheus.Registry, prefix string) (values []string) {
	t.Helper()
	families, err := reg.Gather()
	probetest.Must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if strings.HasPrefix(f.GetName(), prefix) {
				values = append(values, fmt.Sprint(f.GetName(), " ", m.GetGauge().GetValue()+m.GetCounter().GetValue()))
			}
		}
	}
	return values
}

func describe(volumes Snapshot) string {
	if !volumes.Known {
		return "unknown"
	}
	var handles []string
	for _, volume := range volumes.InUse {
		handles = append(handles, volume.Handle)
	}
	if volumes.Err != nil {
		handles = append(handles, "partial")
	}
	return strings.Join(handles, " ")
}

// A volume that was known stays until everything could be read, without it.
func TestVolumesSurviveErrors(t *testing.T) {
	v := newScene(t)
	broken, gone := errors.New("read b: broken"), fmt.Errorf("read c: %w", fs.ErrNotExist)
	if got := describe(v.Last()); got != "unknown" {
		t.Errorf("before the first look: %s", got)
	}
	if lines := scrape(t, v.reg, "nodeprobe_volumes_in_use"); len(lines) > 0 {
		t.Errorf("before the first look: %q", lines)
	}
	v.set(func() { v.mounted, v.data["b"] = []string{"b", "a"}, broken })
	v.want("one cannot be read from the beginning", "a partial")
	v.set(func() { v.data["b"] = nil })
	v.want("it can be", "a b")
	v.set(func() { v.mounted, v.data["b"] = []string{"b", "c", "none"}, broken; v.data["none"] = "none" })
	v.want("one is gone, one new, one broken", "a b c partial")
	v.set(func() { v.data["c"] = gone })
	v.want("two are broken", "a b c partial")
	v.set(func() { v.table = errors.New("no table") })
	v.want("nothing is known", "a b c partial")
	v.set(func() { v.table, v.mounted = nil, []string{"b"} })
	v.want("one is gone, one still broken", "a b c partial")
	v.set(func() { v.data = map[string]any{} })
	v.want("all can be read", "b")
	v.set(func() { v.mounted = nil })
	v.want("none is left", "")
	var logged []string
	for line := range strings.Lines(v.logs.String()) {
		_, text, _ := strings.Cut(strings.TrimSpace(line), "msg=")
		logged = append(logged, text)
	}
	warning := `"volumes in use cannot be read; keeping those known before" err="read b: broken"`
	again := `"all volumes in use are known again"`
	if d := cmp.Diff([]string{warning, again, warning, again}, logged); d != "" {
		t.Errorf("logged (-want +got):\n%s", d)
	}
	metrics := []string{"nodeprobe_volumes_in_use 0", "nodeprobe_volumes_read_errors_total 5"}
	if d := cmp.Diff(metrics, scrape(t, v.reg, "nodeprobe_volumes")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestVolumesWithManyErrors(t *testing.T) {
	v := newScene(t)
	for i := range 300 {
		handle := fmt.Sprintf("%03d", i)
		v.mounted = append(v.mounted, handle)
		v.data[handle] = errors.New(handle + " is broken")
	}
	if err := v.Sample(t.Context()).Err; probetest.ErrText(err) != "000 is broken, and so in 299 more" {
		t.Errorf("error %v", err)
	}
}

// What did not change is not read again, and a line that a table lacked once is no
// volume gone.
func TestVolumesAndTornTables(t *testing.T) {
	v := newScene(t)
	v.mounted = []string{"a", "b"}
	v.tables = [][]string{{"a"}}
	v.want("the first table lacks one", "a b")
	before := v.reads
	v.want("unchanged", "a b")
	v.tables = [][]string{{"b"}}
	v.want("a later one does", "a b")
	if v.reads != before {
		t.Errorf("%d files were read though nothing changed", v.reads-before)
	}
	v.mounted = []string{"b"}
	v.want("gone", "b")
}

// A look that hangs is given up, and there is no second one meanwhile.
func TestVolumesHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newScene(t)
		v.mounted = []string{"a"}
		hang := func() { v.set(func() { v.gate = make(chan struct{}) }) }
		release := func() {
			v.set(func() { close(v.gate); v.gate = nil })
			synctest.Wait()
		}
		hang()
		start := time.Now()
		v.want("at first", "unknown")
		for range 3 {
			v.want("still", "unknown")
		}
		took := time.Since(start)
		release()
		if took != defaultTimeout || v.reads != 1 {
			t.Errorf("took %s and %d reads, want one timeout and 1", took, v.reads)
		}
		v.want("released", "a")
		v.set(func() { v.mounted = []string{"b"} })
		hang()
		v.want("again", "a partial")
		v.set(func() { v.mounted = []string{"c"} })
		release()
		v.want("what came late is stale", "c")
	})
}

// Run looks when it is asked to, else once a minute, and sooner while it fails; it
// reports each change once, and ends although a look hangs.
func TestVolumesRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newScene(t)
		start := time.Now()
		var reported []string
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("stop")
		done := make(chan error)
		go func() {
			done <- v.Run(ctx, func() {
				reported = append(reported, time.Since(start).String()+" "+describe(v.Last()))
			})
		}()
		after := func(d time.Duration, change func()) {
			time.Sleep(d)
			v.set(change)
		}
		after(30*time.Second, func() { v.mounted = []string{"a"} }) // nobody says so
		after(time.Minute, func() { v.mounted = []string{"a", "b"} })
		v.Wake()
		v.Wake()
		after(time.Second, func() { v.data["c"], v.mounted = errors.New("broken"), []string{"b", "c"} })
		v.Wake()
		after(time.Second/2, func() { v.data["c"] = errors.New("broken in another way") })
		after(4*time.Second, func() { v.data["c"] = nil }) // looks after 1, 2 and 4 s
		after(time.Minute, func() { v.mounted, v.gate = []string{"d"}, make(chan struct{}) })
		v.Wake()
		after(10*time.Second, func() { close(v.gate); v.gate = nil })
		synctest.Wait()
		after(0, func() { v.mounted, v.gate = nil, make(chan struct{}) })
		hung := v.gate
		v.set(func() { v.mounted = []string{"e"} })
		v.Wake()
		synctest.Wait()
		cancel(cause)
		if err := <-done; !errors.Is(err, cause) {
			t.Errorf("ended with %v", err)
		}
		close(hung)
		want := []string{
			"0s ", "1m0s a", "1m30s a b", "1m31s a b partial", "1m38s b c",
			"2m37.5s b c partial", "2m45.5s d",
		}
		if !slices.Equal(reported, want) {
			t.Errorf("reported %q, want %q", reported, want)
		}
	})
}

// Run is late where its caller never returns: not while it waits for the next look, and
// not because of a disk that hangs.
func TestAlive(t *testing.T) {
	for name, test := range map[string]struct {
		set         func(*scene)
		stuck, late bool // stuck: changed does not return
	}{
		"all is well":              {set: func(*scene) {}},
		"errors":                   {set: func(v *scene) { v.table = errors.New("no table") }},
		"a disk hangs":             {set: func(v *scene) { v.mounted, v.gate = []string{"a"}, make(chan struct{}) }},
		"the caller never returns": {set: func(*scene) {}, stuck: true, late: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newScene(t)
				test.set(v)
				var mu sync.Mutex
				var due time.Time // zero while nothing is
				overdue := func() bool { return !due.IsZero() && time.Now().After(due) }
				v.cfg.Alive = func(within time.Duration) {
					mu.Lock()
					defer mu.Unlock()
					if overdue() {
						t.Errorf("%v late", time.Since(due))
					}
					if due = (time.Time{}); within > 0 {
						due = time.Now().Add(within)
					}
				}
				never := make(chan struct{})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					v.Run(ctx, func() {
						if test.stuck {
							<-never
						}
					})
				}()
				time.Sleep(time.Hour)
				mu.Lock()
				if overdue() != test.late {
					t.Errorf("after an hour: late is %t, want %t", overdue(), test.late)
				}
				due = time.Time{}
				mu.Unlock()
				cancel()
				close(never)
				if v.gate != nil {
					close(v.gate)
				}
				<-ended
			})
		})
	}
}

func TestVolumesConfigErrors(t *testing.T) {
	good := Config{Procfs: "/proc", Rootfs: "/", RootDirectory: "/r"}
	for want, change := range map[string]func(*Config){
		`Procfs: "proc" is not an absolute path`:    func(c *Config) { c.Procfs = "proc" },
		`Rootfs: "" is not an absolute path`:        func(c *Config) { c.Rootfs = "" },
		`RootDirectory: "" is not an absolute path`: func(c *Config) { c.RootDirectory = "" },
		`Timeout: -1ns is negative`:                 func(c *Config) { c.Timeout = -1 },
	} {
		cfg := good
		change(&cfg)
		if _, err := New(cfg); probetest.ErrText(err) != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// A filesystem that hangs for real, in the kernel, keeps nobody waiting but a
// goroutine.
func TestRealHungVolumes(t *testing.T) {
	f := probetest.NewFUSE(t, t.TempDir())
	s, err := New(Config{
		Procfs: "/proc", Rootfs: "/", RootDirectory: filepath.Join(f.Dir, "kubelet"), Timeout: 100 * time.Millisecond,
	})
	probetest.Must(t, err)
	f.SetSilent(true)
	for range 3 {
		if v := s.Sample(t.Context()); v.Known || !errors.Is(v.Err, errSlow(100*time.Millisecond)) {
			t.Errorf("got %+v", v)
		}
	}
	f.SetSilent(false)
	for deadline := time.Now().Add(30 * time.Second); !s.Sample(t.Context()).Known; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no answer within 30 s")
		}
	}
}

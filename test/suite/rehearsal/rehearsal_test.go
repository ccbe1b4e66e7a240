// Package rehearsal proves that nodeprobe, once it has rehearsed, waits for no disk
// whatever it has to do: every page that it needs is in memory, and locked there.
package rehearsal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/fault"
	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(build.Main(m))
}

// maxFaults is how many major faults one action may cost.
const maxFaults = 2

// scene is nodeprobe in mode own, behind a proxy, with limits of this machine that can be
// crossed.
type scene struct {
	*stage.Node
	proxy *fault.Proxy
	agent *agent.Agent
	loads []*pressure.Load
	pid   int
}

// newScene sets the scene for nodeprobe, whose program is on the disk of the test's
// directory.
func newScene(t *testing.T, cp *controlplane.ControlPlane, config agent.Config) *scene {
	t.Helper()
	disk := pressure.Disk(t, 64)
	s := &scene{Node: stage.New(t, cp, config), loads: pressure.Loads(t, disk)}
	s.proxy = s.Through()
	s.Spec.Config = s.Spec.Config.With(agent.Config{
		"bpf": "auto", "sampleInterval": "10s", "rootDirectory": disk.Dir, "evictionHard": agent.Hard(pressure.Thresholds(s.loads)),
		"nodeStatusUpdateFrequency": "10s", "nodeLeaseDurationSeconds": 40, "logLevel": "debug",
	})
	s.Spec.Binary = copyOf(t, s.Spec.Binary)
	return s
}

// start returns when nodeprobe has done what follows its start.
func (s *scene) start() {
	s.T.Helper()
	s.agent = s.StartReady()
	s.pid = s.agent.PID()
}

// startLate starts nodeprobe before the API server, and returns when it has rehearsed what
// it could not before.
func (s *scene) startLate() {
	s.T.Helper()
	s.proxy.Refuse()
	s.agent = s.Start()
	s.pid = s.agent.PID()
	first := stage.WaitLogged(s.T, s.agent, "not everything is rehearsed", 0)
	if !strings.HasPrefix(first.Err, "rehearse API server: ") {
		s.T.Errorf("not rehearsed: %s", first.Err)
	}
	before := must.Get(footprint.Read(s.pid))(s.T)
	must.OK(s.T, s.proxy.Accept())
	stage.Until(s.T, "it has rehearsed", func() bool {
		return slices.ContainsFunc(stage.Logged(s.T, s.agent, "rehearsed"), func(r agent.Record) bool { return r.Level == "INFO" })
	})
	s.T.Logf("%d KiB before there was an API server, %d KiB after", before.RSS>>10, must.Get(footprint.Read(s.pid))(s.T).RSS>>10)
}

// copyOf returns a copy of a program that only this test maps.
func copyOf(t *testing.T, file string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "nodeprobe")
	must.OK(t, os.WriteFile(program, must.Get(os.ReadFile(file))(t), 0o755))
	return program
}

// action is something that nodeprobe does in a hurry.
type action struct {
	name string
	// do returns when it is done.
	do func(*scene)
}

var actions = []action{
	{"a scrape", func(s *scene) { s.get("/metrics", "") }},
	{"a scrape, compressed", func(s *scene) { s.get("/metrics", "gzip") }},
	{"a scrape of OpenMetrics", func(s *scene) {
		s.get("/metrics", "gzip", "Accept", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
	}},
	{"health, status and page", func(s *scene) {
		for _, path := range []string{"/livez", "/readyz?verbose", "/api/v1/status", "/"} {
			s.get(path, "gzip")
		}
	}},
	{"PIDs run short", func(s *scene) { s.cross(1) }},
	{"memory runs short", func(s *scene) { s.cross(0) }},
	{"a disk runs full", func(s *scene) { s.cross(2) }},
	{"a process is killed", func(s *scene) {
		pid := must.Get(pressure.OOMKill())(s.T)
		s.event(fmt.Sprintf("Killed process %d", pid))
	}},
	{"the API server closes connections", func(s *scene) {
		s.proxy.Refuse()
		must.OK(s.T, s.proxy.Accept())
		s.cross(1)
	}},
	{"the API server is away", func(s *scene) {
		s.proxy.Refuse()
		must.OK(s.T, s.loads[1].Press())
		s.failing()
		must.OK(s.T, s.proxy.Accept())
		s.posted(1)
	}},
	{"the API server resets a connection", func(s *scene) { s.fails(fault.Reset(), 1) }},
	{"a conflict", func(s *scene) { s.fails(fault.Status(http.StatusConflict), 1) }},
	{"errors of the API server", func(s *scene) { s.fails(fault.Status(http.StatusInternalServerError), 6) }},
	{"a new configuration", func(s *scene) {
		before := bytes.Count(s.log(), []byte("configuration has not changed"))
		must.OK(s.T, syscall.Kill(s.pid, syscall.SIGHUP))
		stage.Until(s.T, "it has reloaded", func() bool { return bytes.Count(s.log(), []byte("configuration has not changed")) > before })
	}},
	{"nothing, for a while", func(*scene) { time.Sleep(12 * time.Second) }},
}

// TestFaults drops nodeprobe's program from memory as far as the kernel may, before each
// thing that it has to do. Where it has rehearsed and locked its memory, that is nothing.
func TestFaults(t *testing.T) {
	need.Root(t)
	total := map[string]int64{}
	cp := controlplane.StartExclusive(t, controlplane.Options{})
	for _, test := range []struct {
		name, limit string
		actions     []action
	}{
		{"locked", "48Mi", actions},
		{"not locked", "0", actions[:8]}, // which is enough to compare
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newScene(t, cp, agent.Config{"lockedMemoryLimit": test.limit})
			s.start()
			if test.limit == "0" {
				time.Sleep(time.Until(s.agent.Started.Add(10 * time.Second)))
				total[test.name] = s.count(test.actions, math.MaxInt64)
			} else {
				s.waitRehearsed()
				total[test.name] = s.count(test.actions, maxFaults)
			}
		})
	}
	t.Logf("RESULT rehearsal_major_faults=%d unlocked=%d", total["locked"], total["not locked"])
	if total["not locked"] < 40 {
		t.Errorf("only %d major faults without a lock: this test shows nothing", total["not locked"])
	}
}

// An API server that was not there when nodeprobe rehearsed changes nothing.
func TestFaultsLate(t *testing.T) {
	need.Root(t)
	s := newScene(t, controlplane.StartExclusive(t, controlplane.Options{}), agent.Config{"lockedMemoryLimit": "48Mi"})
	s.startLate()
	s.count(actions[10:13], maxFaults) // failures of the API server
}

// count returns how many major faults the actions cost, each of which is to cost no more
// than limit.
func (s *scene) count(actions []action, limit int64) (total int64) {
	s.T.Helper()
	s.evict()
	kept := must.Get(footprint.Read(s.pid))(s.T)
	s.T.Logf("%d KiB of the program are left in memory, %d KiB in all", kept.RSSFile>>10, kept.RSS>>10)
	for _, a := range actions {
		s.evict()
		before := s.faults()
		a.do(s)
		time.Sleep(300 * time.Millisecond) // what goes on behind it
		after := s.faults()
		major := after.major - before.major
		total += major
		s.T.Logf("%-36s %4d major faults, %4d minor", a.name, major, after.minor-before.minor)
		if major > limit {
			s.T.Errorf("%s: %d major faults, more than %d", a.name, major, limit)
		}
		s.release()
	}
	return total
}

// waitRehearsed waits until everything is rehearsed, and shows how long each step took.
func (s *scene) waitRehearsed() {
	s.T.Helper()
	type line struct {
		Msg, Step, Err string
		Took           time.Duration
	}
	var steps []line
	stage.Until(s.T, "it has rehearsed", func() bool {
		steps = nil
		for text := range bytes.Lines(s.log()) {
			var l line
			if json.Unmarshal(text, &l) == nil && l.Msg == "rehearsed" {
				steps = append(steps, l)
			}
		}
		return len(steps) > 0 && steps[len(steps)-1].Step == "agent"
	})
	for _, l := range steps {
		s.T.Logf("rehearsed %-24s in %4d ms", l.Step, l.Took.Milliseconds())
		if l.Err != "" {
			s.T.Errorf("rehearse %s: %s", l.Step, l.Err)
		}
	}
}

// cross has a limit crossed, and waits until the Node says so.
func (s *scene) cross(load int) {
	s.T.Helper()
	must.OK(s.T, s.loads[load].Press())
	s.posted(load)
}

func (s *scene) posted(load int) {
	s.T.Helper()
	s.WaitCondition(s.loads[load].Condition, corev1.ConditionTrue)
}

// fails has the next patches fail, and a limit crossed.
func (s *scene) fails(with fault.Fault, times int) {
	s.T.Helper()
	s.proxy.Inject(fault.Rule{Methods: []string{http.MethodPatch, http.MethodGet}, Path: stage.NodesPath + "/*/status", Count: times, Fault: with})
	s.cross(1)
	s.proxy.Clear()
}

func (s *scene) failing() {
	s.T.Helper()
	stage.Until(s.T, "it notices", func() bool {
		code, _, err := s.agent.Get(s.T.Context(), "/readyz")
		return err == nil && code != http.StatusOK
	})
}

// release ends all pressure, and waits until the Node says so.
func (s *scene) release() {
	s.T.Helper()
	s.proxy.Clear()
	for _, l := range s.loads {
		must.OK(s.T, l.Release())
	}
	for _, l := range s.loads {
		s.WaitCondition(l.Condition, corev1.ConditionFalse)
	}
	s.WaitReady(s.agent)
}

func (s *scene) event(text string) {
	s.T.Helper()
	stage.Eventually(s.T, "there is an event", func() error {
		events, err := s.Client.CoreV1().Events("").List(s.T.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + s.Name})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if strings.Contains(e.Message, text) {
				return nil
			}
		}
		return errors.New("not yet")
	})
}

// get asks for a path over a new connection.
func (s *scene) get(path, encoding string, header ...string) {
	s.T.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
	r := must.Get(http.NewRequestWithContext(s.T.Context(), http.MethodGet, s.agent.URL(path), nil))(s.T)
	r.Header.Set("Accept-Encoding", encoding)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp := must.Get(client.Do(r))(s.T)
	defer resp.Body.Close()
	must.Get(io.Copy(io.Discard, resp.Body))(s.T)
	if resp.StatusCode != http.StatusOK {
		s.T.Errorf("%s: %s", path, resp.Status)
	}
}

func (s *scene) log() []byte {
	s.T.Helper()
	return must.Get(os.ReadFile(s.agent.LogFile))(s.T)
}

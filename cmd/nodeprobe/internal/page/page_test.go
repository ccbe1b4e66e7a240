package page

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/process"
	"github.com/nodeprobe/nodeprobe/heartbeat"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs; -update writes it (-want +got):\n%s", path, diff)
	}
}

var begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func threshold(t *testing.T, signal, value string) pressure.Threshold {
	t.Helper()
	thresholds, _, err := pressure.Parse(pressure.Config{Hard: map[string]string{signal: value}})
	if err != nil {
		t.Fatal(err)
	}
	return thresholds[0]
}

// observed is the state of a machine of 8 GiB that is only observed, without BPF and
// without PSI of io.
func observed(t *testing.T) nodeprobe.State {
	t.Helper()
	s := nodeprobe.State{Mode: nodeprobe.Observe, NodeName: "192.0.2.7", Started: begin.Add(-time.Hour)}
	n := &s.Snapshot
	n.Time, n.Took = begin, 123456*time.Nanosecond
	n.Signals[probe.MemoryAvailable] = probe.Observation{Available: 6 << 30, Capacity: 8 << 30, OK: true}
	n.Signals[probe.PIDAvailable] = probe.Observation{Available: 32568, Capacity: 32768, OK: true}
	n.Memory = probe.Memory{Total: 8 << 30, Available: 6 << 30, WorkingSet: 2 << 30, OK: true}
	n.Swap = probe.Swap{Total: 1 << 30, Free: 1 << 30}
	n.Tasks = probe.Tasks{Running: 1, Total: 200, Max: 32768, OK: true}
	n.OOMKills = probe.Count{Value: 3, OK: true}
	stall := probe.Stall{
		Some: probe.StallLine{Avg10: 0.015, Avg60: 0.0075, Avg300: 0.0025, Total: 1500 * time.Millisecond},
		Full: probe.StallLine{Avg10: 0.005, Avg60: 0.0025, Total: 500 * time.Millisecond}, OK: true, FullOK: true,
	}
	n.Pressure[probe.CPU], n.Pressure[probe.MemoryResource] = stall, stall
	noPSI := errors.New("open /proc/pressure/io: no such file or directory")
	n.Pressure[probe.IO].Err, n.Errors[probe.SourcePressureIO] = noPSI, noPSI
	for i := range s.Verdicts {
		s.Verdicts[i] = pressure.Verdict{Condition: pressure.Condition(i), Status: pressure.False, Since: begin}
	}
	for _, limit := range []struct {
		signal probe.Signal
		value  string
	}{
		{probe.MemoryAvailable, "100Mi"},
		{probe.AllocatableMemoryAvailable, "100Mi"},
		{probe.NodeFsAvailable, "1Ki"},
		{probe.PIDAvailable, "5%"},
	} {
		s.Estimates = append(s.Estimates, pressure.Estimate{Signal: limit.signal, Threshold: threshold(t, limit.signal.String(), limit.value)})
	}
	for i := range bpf.NumSignals {
		s.Hooks = append(s.Hooks, bpf.Hook{Signal: bpf.Signal(i), Name: "tp_btf/x", Err: bpf.ErrDisabled})
	}
	s.Live = []nodeprobe.Check{{Name: "sampler"}}
	s.Ready = []nodeprobe.Check{{Name: "sampler"}, {Name: "conditions", Err: errors.New("io.full.avg10: no such file or directory")}}
	return s
}

// owned is the state of a machine that is short of everything, in mode own: every field
// of the JSON is there.
func owned(t *testing.T) nodeprobe.State {
	t.Helper()
	s := observed(t)
	s.Mode = nodeprobe.Own
	s.Estimates[0].OK, s.Estimates[0].TimeToLimit = true, 90*time.Second
	s.Snapshot.Signals[probe.NodeFsAvailable].Err = errors.New("statfs /: no answer within 2s")
	s.Verdicts[0] = pressure.Verdict{Condition: 0, Status: pressure.True, Met: true, Since: begin, Threshold: s.Estimates[0].Threshold}
	s.Verdicts[1] = pressure.Verdict{Condition: 1, Status: pressure.Unknown, Frozen: true, Since: begin}
	s.Verdicts[2] = pressure.Verdict{Condition: 2, Status: pressure.True, Held: true, Since: begin, LastMet: begin.Add(-time.Minute)}
	s.Snapshot.Kernel = bpf.Counters{
		Tasks: 1, Forks: 2, Exits: 3, OOMKills: 4, DirectReclaims: 5, DirectReclaimStall: 6 * time.Millisecond,
		CgroupReclaims: 7, CgroupReclaimStall: 8 * time.Millisecond, BlockErrors: 9,
	}
	for i := range s.Hooks {
		s.Snapshot.Kernel.Has = s.Snapshot.Kernel.Has.With(bpf.Signal(i))
		s.Hooks[i].Attached, s.Hooks[i].Err = true, nil
	}
	s.Hooks = append(s.Hooks, bpf.Hook{Signal: bpf.Pressure, Name: "bpf_timer/tick", Err: errors.New("no timers"), Remedy: "use Linux 5.15"})
	s.Samples[probe.CauseTick] = 7
	s.Posted = &status.Posted{Time: begin.Add(-time.Second), Reason: "changed", Bytes: 321}
	s.Lease = &heartbeat.State{Renewed: begin.Add(-2 * time.Second), Result: heartbeat.ResultForeign}
	s.StoodDown = errors.New("a kubelet renews the lease")
	s.Runtime = &cri.Snapshot{}
	s.Runtime.Reads[cri.CallStatus].Err = errors.New("connection refused")
	return s
}

// newPage returns a Page of a state, with a history of that state alone.
func newPage(state *nodeprobe.State) *Page {
	h := new(History)
	if !state.Snapshot.Time.IsZero() {
		h.Observe(&state.Snapshot)
	}
	return New(Config{Version: "v1.2.3", State: func() nodeprobe.State { return *state }, Sample: func() {}, History: h, Memory: func() process.MemoryState {
		return process.MemoryState{Limit: 48 << 20, Locked: true, Bytes: 13 << 20, MajorFaults: 2}
	}})
}

// serve is a server with the page's routes alone.
func serve(p *Page) http.Handler {
	mux := http.NewServeMux()
	for _, routes := range []map[string]http.Handler{p.Routes(), p.HealthRoutes()} {
		for pattern, handler := range routes {
			mux.Handle(pattern, handler)
		}
	}
	return mux
}

func request(h http.Handler, method, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w
}

// get fails the test unless the response is 200.
func get(t *testing.T, h http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := request(h, http.MethodGet, path)
	if w.Code != http.StatusOK {
		t.Fatalf("GET %s: %d %s", path, w.Code, w.Body)
	}
	return w
}

func TestRoutes(t *testing.T) {
	var state nodeprobe.State
	h := serve(newPage(&state))
	for _, path := range []string{"/", "/api/v1/status"} {
		if w := request(h, http.MethodGet, path); w.Code != http.StatusServiceUnavailable || w.Body.String() != "no sample yet\n" {
			t.Errorf("GET %s before the first sample: %d %q", path, w.Code, w.Body)
		}
	}
	state = observed(t)
	h = serve(newPage(&state))
	for path, contentType := range map[string]string{"/": "text/html; charset=utf-8", "/api/v1/status": "application/json", "/api/v1/history": "application/json"} {
		header := get(t, h, path).Header()
		for name, want := range map[string]string{
			"Content-Type": contentType, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
			"Cross-Origin-Resource-Policy": "same-origin", "Referrer-Policy": "no-referrer",
		} {
			if got := header.Get(name); got != want {
				t.Errorf("GET %s: %s: %q, want %q", path, name, got, want)
			}
		}
	}
	state.Ready = nil
	for _, path := range []string{"/", "/api/v1/status", "/api/v1/history", "/livez", "/healthz", "/readyz"} {
		if w := request(h, http.MethodHead, path); w.Code != http.StatusOK {
			t.Errorf("HEAD %s: %d", path, w.Code)
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
			if w := request(h, method, path); w.Code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d", method, path, w.Code)
			}
		}
	}
	for _, path := range []string{"/index.html", "/page.css", "/page.js", "/favicon.ico", "/api", "/api/", "/api/v1", "/api/v1/status/", "/api/v1/nodes", "/livez/x", "/debug/pprof/"} {
		if w := request(h, http.MethodGet, path); w.Code != http.StatusNotFound {
			t.Errorf("GET %s: %d", path, w.Code)
		}
	}
}

// The policy allows the page's one style and its one script, as they are in the page, and
// nothing that is in an attribute or comes from elsewhere.
func TestPolicy(t *testing.T) {
	state := observed(t)
	w := get(t, serve(newPage(&state)), "/")
	page, policy := w.Body.String(), w.Header().Get("Content-Security-Policy")
	if !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
		t.Errorf("the policy is %q", policy)
	}
	for _, element := range []string{"style", "script"} {
		found := regexp.MustCompile(`(?s)<`+element+`>(.*?)</`+element+`>`).FindAllStringSubmatch(page, -1)
		if len(found) != 1 {
			t.Fatalf("%d elements %s", len(found), element)
		}
		sum := sha256.Sum256([]byte(found[0][1]))
		if want := element + "-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "';"; !strings.Contains(policy, want) {
			t.Errorf("no %s in %q", want, policy)
		}
		page = strings.Replace(page, found[0][0], "", 1)
	}
	if bad := regexp.MustCompile(`(?i)<[^>]* (on\w+|style|src)=|https?://`).FindString(page); bad != "" {
		t.Errorf("the page has %q", bad)
	}
	if len(pageStyle)+len(pageScript) > 12<<10 {
		t.Errorf("style and script are %d bytes", len(pageStyle)+len(pageScript))
	}
}

// The names are an interface: what reads them breaks if they change.
func TestStatusGolden(t *testing.T) {
	for name, state := range map[string]nodeprobe.State{"observe.json": observed(t), "own.json": owned(t)} {
		var out map[string]any
		if err := json.Unmarshal(get(t, serve(newPage(&state)), "/api/v1/status").Body.Bytes(), &out); err != nil {
			t.Fatal(err)
		}
		self := out["self"].(map[string]any)
		for _, name := range []string{"cpuSeconds", "residentBytes", "recentCPUShare"} {
			if n, ok := self[name].(float64); !ok || n <= 0 {
				t.Errorf("self.%s is %v", name, self[name])
			}
			self[name] = 1
		}
		var text bytes.Buffer
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(out); err != nil {
			t.Fatal(err)
		}
		golden(t, name, text.String())
	}
}

// Why memory is not locked is an error on the page, with what helps.
func TestMemoryIsNotLocked(t *testing.T) {
	state := observed(t)
	for _, test := range []struct {
		state process.MemoryState
		want  *errorView
		text  string // what follows the resident size
	}{
		{process.MemoryState{Limit: 1, Err: fmt.Errorf("not permitted; %w", process.ErrLockDenied)}, &errorView{"memory lock", "not permitted", process.ErrLockDenied.Error()}, ""},
		{process.MemoryState{Limit: 1, Err: errors.New("too much: raise it"), MajorFaults: 1}, &errorView{"memory lock", "too much: raise it", ""}, ", 1 major fault"},
		{process.MemoryState{Limit: 1}, nil, ""}, // it is starting
		{process.MemoryState{Limit: 1, Locked: true, Bytes: 1 << 20}, nil, ", 1Mi locked"},
		{process.MemoryState{}, nil, ""},
	} {
		p := newPage(&state)
		p.Memory = func() process.MemoryState { return test.state }
		r := p.report(&state, begin)
		var got *errorView
		for i, e := range r.Snapshot.Errors {
			if e.Source == "memory lock" {
				got = &r.Snapshot.Errors[i]
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", test.state, diff)
		}
		if text := r.Self.memory(); text != amount(r.Self.ResidentBytes, "bytes")+test.text {
			t.Errorf("%+v: %q", test.state, text)
		}
	}
}

// A viewer gets a new sample next time, unless the latest is fresh.
func TestLookingTakesSamples(t *testing.T) {
	state := observed(t)
	samples := 0
	p := newPage(&state)
	p.Sample = func() { samples++ }
	h := serve(p)
	for _, path := range []string{"/", "/api/v1/status"} {
		before := samples
		state.Snapshot.Time = time.Now().Add(-time.Minute)
		if get(t, h, path); samples != before+1 {
			t.Errorf("GET %s of an old sample asks for %d", path, samples-before)
		}
		state.Snapshot.Time = time.Now().Add(time.Hour)
		if get(t, h, path); samples != before+1 {
			t.Errorf("GET %s of a fresh sample asks for another", path)
		}
	}
}

// The modes that post the conditions of the configuration show them beside a kubelet's.
func TestStatusFindings(t *testing.T) {
	state := observed(t)
	for i, s := range []pressure.Status{pressure.False, pressure.True, pressure.Unknown} {
		state.Conditions = append(state.Conditions, pressure.Finding{Type: fmt.Sprint("example.com/", i), Status: s, Message: "it is so", Since: begin})
	}
	posted := []conditionView{
		{Type: "example.com/0", Status: "False", Since: begin},
		{Type: "example.com/1", Status: "True", Since: begin, Why: "it is so"},
		{Type: "example.com/2", Status: "Unknown", Since: begin, Why: "it is so"},
	}
	want := map[nodeprobe.Mode][]conditionView{nodeprobe.Observe: nil, nodeprobe.Augment: posted, nodeprobe.Own: posted}
	for mode, want := range want {
		state.Mode = mode
		got := newPage(&state).report(&state, begin).Snapshot.Conditions[pressure.NumConditions:]
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("mode %s (-want +got):\n%s", mode, diff)
		}
	}
}

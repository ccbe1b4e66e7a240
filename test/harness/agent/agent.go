// Package agent runs nodeprobe, the real binary, as a child of a test.
package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

const (
	// liveTimeout bounds the start; stopGrace is for nodeprobe to detach from
	// the kernel.
	liveTimeout = 2 * time.Minute
	stopGrace   = 30 * time.Second
)

// Config is a nodeprobe configuration, by field. Values are what the YAML has:
// "100ms", 4, []string.
type Config map[string]any

// Own is the configuration of an agent in own mode that does everything as
// often as it can, and to which the state of this machine does not matter: no
// threshold is in force and no BPF program is attached. It does not rehearse either,
// which a server and a log show, and leaves its oom_score_adj alone.
func Own() Config {
	return Config{
		"apiVersion": "nodeprobe.dev/v1alpha1", "kind": "NodeProbeConfiguration", "mode": "own",
		"sampleInterval": "100ms", "bpf": "off", "rootDirectory": "/", "imageDirectories": []string{},
		"evictionHard":                     Hard(nil),
		"evictionPressureTransitionPeriod": "1s",
		"nodeStatusUpdateFrequency":        "1s",
		"nodeStatusReportFrequency":        "5m",
		"nodeLeaseDurationSeconds":         4,
		"logFormat":                        "json",
		"lockedMemoryLimit":                "0", "oomScoreAdj": 1000,
	}
}

// With returns a copy with the fields of other set.
func (c Config) With(other Config) Config {
	c = maps.Clone(c)
	maps.Copy(c, other)
	return c
}

// Hard returns an evictionHard with the given thresholds and no other. The
// product merges what a file says with its defaults, so these are turned off.
func Hard(thresholds map[string]string) map[string]string {
	all := map[string]string{
		"memory.available": "0%", "pid.available": "0%",
		"nodefs.available": "0%", "nodefs.inodesFree": "0%",
		"imagefs.available": "0%", "imagefs.inodesFree": "0%",
	}
	maps.Copy(all, thresholds)
	return all
}

// Env is the environment that the manifests give every agent.
var Env = []string{"GOMEMLIMIT=32MiB", "GODEBUG=asyncpreemptoff=1"}

// Spec is what to run.
type Spec struct {
	// Binary is the file that Build made.
	Binary string
	// Dir receives the configuration and the log.
	Dir string
	// NodeName and Kubeconfig are who it is.
	NodeName, Kubeconfig string
	// Config is usually made from Own.
	Config Config
	// Args come after the arguments of every agent.
	Args []string
	// Env is added to the package's Env, and to this process's environment.
	Env []string
	// Cgroup is as in process.Spec.
	Cgroup string
	// Unread, once it is closed, has nobody read any more what the agent logs.
	Unread <-chan struct{}
	// TLS is how to reach the agent if Args or Config have it serve HTTPS.
	TLS *tls.Config
}

// Agent is a running nodeprobe. The caller must Stop it.
type Agent struct {
	// LogFile is what it writes; a later run has a file of its own.
	LogFile string
	// Started is when the process was started.
	Started time.Time

	*process.Process
	address string
	scheme  string
	client  *http.Client
}

// Start runs nodeprobe and returns when it answers /livez, whether or not the API
// server can be reached.
func Start(t testing.TB, spec Spec) (a *Agent, err error) {
	t.Helper()
	err = process.Retry(func() error {
		a, err = start(t, spec)
		return err
	})
	return a, err
}

func start(t testing.TB, spec Spec) (*Agent, error) {
	t.Helper()
	// JSON is YAML too.
	config, configFile := must.Get(json.MarshalIndent(spec.Config, "", "  "))(t), filepath.Join(spec.Dir, spec.NodeName+".yaml")
	must.OK(t, os.WriteFile(configFile, config, 0o600))
	log := must.Get(os.CreateTemp(spec.Dir, spec.NodeName+"-*.log"))(t)
	log.Close() // The process opens it by its name.

	a := &Agent{
		LogFile: log.Name(), Started: time.Now(),
		address: "127.0.0.1:" + strconv.Itoa(must.Get(process.FreePorts(1))(t)[0]), scheme: "http", client: http.DefaultClient,
	}
	if spec.TLS != nil {
		a.scheme, a.client = "https", &http.Client{Transport: &http.Transport{TLSClientConfig: spec.TLS}}
	}
	a.Process = must.Get(process.Start(process.Spec{
		Path: spec.Binary, LogFile: a.LogFile, Env: slices.Concat(Env, spec.Env), Cgroup: spec.Cgroup, Unread: spec.Unread,
		Args: append([]string{
			"run", "--config", configFile, "--hostname-override", spec.NodeName,
			"--kubeconfig", spec.Kubeconfig, "--web.listen-address", a.address,
		}, spec.Args...),
	}))(t)
	ctx, cancel := context.WithTimeout(t.Context(), liveTimeout)
	defer cancel()
	err := a.WaitReady(ctx, func(ctx context.Context) error {
		// Until then another process may have taken the port, and answer.
		if text, err := os.ReadFile(a.LogFile); err != nil || !bytes.Contains(text, []byte("nodeprobe is running")) {
			return errors.Join(errors.New("it does not log that it is running"), err)
		}
		code, body, err := a.Get(ctx, "/livez")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("/livez: %d: %s", code, body)
		}
		return err
	})
	if err != nil {
		a.Stop()
		return nil, err
	}
	return a, nil
}

// Stop asks the process to end and waits for that. Stopping twice is fine.
func (a *Agent) Stop() { a.Process.Stop(stopGrace) }

// URL is where the agent's own HTTP server serves a path.
func (a *Agent) URL(path string) string { return a.scheme + "://" + a.address + path }

// Address is where the agent's own HTTP server listens.
func (a *Agent) Address() string { return a.address }

// Get asks the agent's own HTTP server for a path.
func (a *Agent) Get(ctx context.Context, path string) (code int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL(path), nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

// Metric returns the present value of a series, which is written as on
// /metrics: `nodeprobe_node_condition{condition="DiskPressure",status="true"}`.
func (a *Agent) Metric(ctx context.Context, series string) (float64, error) {
	all, err := a.Metrics(ctx)
	if err != nil {
		return 0, err
	}
	value, ok := all[series]
	if !ok {
		return 0, fmt.Errorf("read metric: no series %s", series)
	}
	return value, nil
}

// Metrics returns the present value of every series, by how /metrics writes it.
func (a *Agent) Metrics(ctx context.Context) (map[string]float64, error) {
	code, body, err := a.Get(ctx, "/metrics")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("/metrics: %d", code)
	}
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return parseMetrics(body)
}

// ReadMetrics is Metrics of an agent that somebody else has started, by the address
// that it listens at.
func ReadMetrics(ctx context.Context, address string) (map[string]float64, error) {
	return (&Agent{address: address, scheme: "http", client: http.DefaultClient}).Metrics(ctx)
}

// parseMetrics reads the text format as the agent writes it: without timestamps.
func parseMetrics(text []byte) (map[string]float64, error) {
	all := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		// A label's value may contain spaces, the figure does not.
		at := strings.LastIndexByte(line, ' ')
		if at < 0 {
			return nil, fmt.Errorf("read metrics: no value in %q", line)
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("read metrics: line %q: %w", line, err)
		}
		all[line[:at]] = value
	}
	return all, nil
}

// Record is one line of the agent's log.
type Record struct {
	Time       time.Time
	Level, Msg string
	// Err is the error that goes with it, if any.
	Err string
	// Line is the whole of it.
	Line string `json:"-"`
}

// Bad reports whether it is a warning or an error.
func (r Record) Bad() bool { return r.Level == "WARN" || r.Level == "ERROR" }

// Log returns what the agent has logged so far; its logFormat must be json. A
// line of another form has only a Msg and a Line.
func (a *Agent) Log() ([]Record, error) {
	data, err := os.ReadFile(a.LogFile)
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	// Anything after the last newline is a line being written.
	data = data[:bytes.LastIndexByte(data, '\n')+1]
	var records []Record
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		r := Record{Line: line}
		if json.Unmarshal([]byte(line), &r) != nil || r.Msg == "" {
			r.Msg = line
		}
		records = append(records, r)
	}
	return records, nil
}

// PostsLeft is how many changes nodeprobe may post at once, by those in its log, which
// must be at level debug: three, and one more every ten seconds.
func PostsLeft(log []Record, now time.Time) int {
	budget := rate.NewLimiter(rate.Every(10*time.Second), 3)
	for _, r := range log {
		if r.Msg == "patched node status" && strings.Contains(r.Line, `"reason":"changed"`) {
			budget.AllowN(r.Time, 1)
		}
	}
	return int(budget.TokensAt(now))
}

// StartForTest is Start, and stops the agent when the test ends. If the test
// has failed, the last lines of the agent's log are shown.
func StartForTest(t testing.TB, spec Spec) *Agent {
	t.Helper()
	a := must.Get(Start(t, spec))(t)
	t.Cleanup(func() {
		a.Stop()
		if t.Failed() {
			t.Logf("the last lines of %s's nodeprobe:\n%s", spec.NodeName, process.LogTail(a.LogFile, 40))
		}
	})
	return a
}

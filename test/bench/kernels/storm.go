package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
	"github.com/nodeprobe/nodeprobe/test/harness/wait"
)

// The storm in figures.
const (
	// thrashing is how much memory.available is left while the guest thrashes, for some
	// time before each crossing.
	thrashing   = 200 << 20
	thrashFor   = 10 * time.Second
	memoryLimit = 160 << 20
	tasksLimit  = 3500
	leaseLasts  = 40 * time.Second
	// stormPatience is for a machine that emulates two CPUs on less.
	stormPatience = 2 * time.Minute
)

// stormNode is a nodeprobe in the guest, as the host sees it.
type stormNode struct {
	name    string
	port    int // of this machine
	config  agent.Config
	history *nodewatch.History
	metrics map[string]float64 // the last
	scrapes []time.Duration
}

// storm lets a guest of 1 GiB thrash until its kernel kills a process for lack of memory.
// The nodeprobe in it has to report all of that to an API server on this machine. A second
// one, whose memory is not locked, is there to compare.
func (b *bench) storm(r *report) {
	i := r.kernel.fetch(b.P, b.cache, b.update)
	r.version = i.version
	cp := b.ControlPlane(controlplane.Options{AuditLog: true})
	ports := must.Get(process.FreePorts(3))(b)
	s := &director{bench: b, r: r, cp: cp, actor: fmt.Sprintf("http://127.0.0.1:%d/", ports[0]), nodes: []*stormNode{
		{name: "locked", port: ports[1]},
		{name: "unlocked", port: ports[2], config: agent.Config{"lockedMemoryLimit": "0"}},
	}}
	dir := filepath.Join(b.scratch, r.kernel.String())
	m := &machine{disk: filepath.Join(dir, "disk"), network: []string{forward(ports[0], actorPort)}, during: s.direct}
	for _, n := range s.nodes {
		n.put(b, r.kernel, cp, filepath.Join(m.disk, n.name))
		n.history = nodewatch.FollowForTest(b, cp.Client(), n.name)
		m.network = append(m.network, forward(n.port, n.port))
	}
	files := []file{
		{name: actorPath, link: initPath},
		{name: "/var/log/containers/hog_default_hog-" + hogID + ".log"}, // names the container
	}
	for name := range parts {
		files = append(files, file{name: "/bin/" + name, link: initPath})
	}
	r.judgeSteps(b.boot(r.kernel, i, m, func(kernel, image, string) []file { return files }))
}

// forward has a port of this machine lead to one of the guest.
func forward(from, to int) string { return fmt.Sprintf("tcp:127.0.0.1:%d-:%d", from, to) }

// put writes what the guest finds on its disk: a binary for each nodeprobe, so that what
// one locks is not in memory for the other.
func (n *stormNode) put(b *bench, k kernel, cp *controlplane.ControlPlane, dir string) {
	user, groups := controlplane.NodeUser(n.name)
	access := cp.ConfigFor(user, groups...)
	// The guest's address of this machine is not in the certificate.
	access.Host, access.ServerName = strings.Replace(access.Host, "127.0.0.1", "10.0.2.2", 1), "localhost"
	config := agent.Config{
		"apiVersion": "nodeprobe.dev/v1alpha1", "kind": "NodeProbeConfiguration", "mode": "own",
		"nodeName": n.name, "webListenAddress": fmt.Sprintf("0.0.0.0:%d", n.port),
		"evictionHard":                     agent.Hard(map[string]string{"memory.available": strconv.Itoa(memoryLimit), "pid.available": strconv.Itoa(tasksLimit)}),
		"evictionPressureTransitionPeriod": "5s", "nodeLeaseDurationSeconds": int(leaseLasts.Seconds()),
	}.With(n.config)
	must.OK(b, os.MkdirAll(dir, 0o755))
	must.OK(b, os.Rename(must.Get(cp.WriteKubeconfig(n.name, access))(b), filepath.Join(dir, "kubeconfig")))
	must.OK(b, os.WriteFile(filepath.Join(dir, "config.yaml"), must.Get(json.Marshal(config))(b), 0o644))
	b.goRun(k, b.root, "build", "-o", filepath.Join(dir, "nodeprobe"), "./cmd/nodeprobe")
}

// director is the host's side of a storm.
type director struct {
	*bench
	ctx     context.Context // the guest's
	r       *report
	cp      *controlplane.ControlPlane
	nodes   []*stormNode
	actor   string
	figures []program.Figure
}

// Context bounds all that a director waits for.
func (s *director) Context() context.Context { return s.ctx }

func (s *director) direct(ctx context.Context) {
	s.ctx = ctx
	n := s.nodes[0]
	for _, n := range s.nodes {
		s.see(n, time.Time{}, corev1.NodeReady)
		wait.Until(s, stormPatience, n.name+" can be scraped", func() error { return n.scrape(ctx) })
	}
	wait.Until(s, stormPatience, "memory is locked", func() error {
		if err := n.scrape(ctx); err != nil || n.metrics["nodeprobe_locked_bytes"] == 0 {
			return errors.Join(errors.New("it is not"), err)
		}
		return nil
	})
	started := n.metrics["process_start_time_seconds"]
	s.crossing("calm_pid", corev1.NodePIDPressure, "tasks", tasksLimit)
	s.do(http.MethodDelete, "tasks", "")
	s.clear()

	ctx, stop := context.WithCancel(ctx)
	var scraping sync.WaitGroup
	for _, n := range s.nodes {
		n.scrapes = nil
		scraping.Go(func() { n.scrapeUntil(ctx) })
	}
	calm := func() { stop(); scraping.Wait() }
	defer calm()
	begin := time.Now()
	s.ask("reader", 0)
	s.ask("hog", thrashing)
	s.Sleep(thrashFor)
	s.crossing("pid", corev1.NodePIDPressure, "tasks", tasksLimit)
	s.do(http.MethodDelete, "tasks", "")
	s.Sleep(thrashFor)
	s.crossing("memory", corev1.NodeMemoryPressure, "hog", memoryLimit)
	if how := s.do(http.MethodPost, "hog", "0"); !strings.Contains(how, "signal: killed") {
		s.Fatalf("the hog was not killed: %s", how)
	}
	s.Logf("the hog is dead, %s after the storm began", time.Since(begin).Round(time.Second))
	wait.Until(s, stormPatience, "the victim is named", func() error { return s.named(n) })
	s.do(http.MethodDelete, "reader", "")
	calm()
	s.clear()
	for _, n := range s.nodes {
		must.OK(s, n.scrape(s.Context()))
	}
	s.r.want(started > 0 && n.metrics["process_start_time_seconds"] == started, "nodeprobe runs since %.0f, at first %.0f", n.metrics["process_start_time_seconds"], started)
	s.r.want(n.metrics["nodeprobe_locked_bytes"] > 0, "%.0f bytes are locked", n.metrics["nodeprobe_locked_bytes"])
	s.compare("scrape_p50", "ms", func(n *stormNode) float64 { return program.Millis(n.scrapes[len(n.scrapes)/2]) })
	s.compare("scrape_max", "ms", func(n *stormNode) float64 { return program.Millis(slices.Max(n.scrapes)) })
	s.compare("major_faults", "faults", func(n *stormNode) float64 { return n.metrics["nodeprobe_major_faults_total"] })
	s.compare("lease_gap_max", "s", s.leaseGap)
	gap := s.figures[len(s.figures)-1].Value
	s.r.want(gap < leaseLasts.Seconds(), "the Lease of %s was renewed every %.0f s or more often", leaseLasts, gap)
	s.Print(s.figures)
	s.do(http.MethodPost, "end", "")
}

// compare adds a figure of the first node, with that of the other beside it.
func (s *director) compare(name, unit string, of func(*stormNode) float64) {
	s.figures = append(s.figures, program.Figure{Name: "guest_" + name, Value: of(s.nodes[0]), Unit: unit, Peer: s.nodes[1].name, Beside: of(s.nodes[1])})
}

// crossing has a part of the storm cross a limit, and clocks how long after the guest's
// answer each Node says so.
func (s *director) crossing(name string, condition corev1.NodeConditionType, part string, limit int) {
	begin := time.Now()
	s.ask(part, limit)
	crossed := time.Now()
	s.compare(name+"_node", "ms", func(n *stormNode) float64 {
		return max(0, program.Millis(s.see(n, begin, condition).Sub(crossed)))
	})
}

// see waits until the Node has a condition, and returns when that was seen.
func (s *director) see(n *stormNode, since time.Time, condition corev1.NodeConditionType) time.Time {
	ctx, cancel := context.WithTimeout(s.Context(), stormPatience)
	defer cancel()
	return must.Get(n.history.Wait(ctx, since, nodewatch.Has(condition, corev1.ConditionTrue)))(s).At
}

// clear waits until no Node has a pressure.
func (s *director) clear() {
	for _, n := range s.nodes {
		for _, condition := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodePIDPressure} {
			wait.Until(s, stormPatience, n.name+" has no "+string(condition), func() error {
				if !nodewatch.Has(condition, corev1.ConditionFalse)(n.history.Last()) {
					return errors.New("it has")
				}
				return nil
			})
		}
	}
}

// named wants an Event with the victim, its pod and its container.
func (s *director) named(n *stormNode) error {
	events := must.Get(s.cp.Client().CoreV1().Events("").List(s.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + n.name}))(s)
	var seen []string
	for _, e := range events.Items {
		if e.Reason == "SystemOOM" && strings.Contains(e.Message, "victim process: hog,") && strings.Contains(e.Message, podUID) && strings.Contains(e.Message, hogID) {
			s.r.want(true, "Event %s: %s", e.Reason, e.Message)
			return nil
		}
		seen = append(seen, e.Reason+": "+e.Message)
	}
	return fmt.Errorf("there are %q", seen)
}

// leaseGap is the longest time in seconds between two renewals, by the API server's clock.
func (s *director) leaseGap(n *stormNode) float64 {
	var last time.Time
	var longest time.Duration
	for _, e := range must.Get(s.cp.AuditEvents())(s) {
		if e.ObjectRef.Resource == "leases" && e.ObjectRef.Name == n.name && e.Verb == "update" && e.ResponseStatus.Code == http.StatusOK {
			if !last.IsZero() {
				longest = max(longest, e.RequestReceivedTimestamp.Sub(last))
			}
			last = e.RequestReceivedTimestamp
		}
	}
	return longest.Seconds()
}

func (n *stormNode) scrape(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, stormPatience)
	defer cancel()
	begin := time.Now()
	metrics, err := agent.ReadMetrics(ctx, fmt.Sprintf("127.0.0.1:%d", n.port))
	if err == nil {
		n.metrics = metrics
	}
	n.scrapes = append(n.scrapes, time.Since(begin))
	return err
}

// scrapeUntil scrapes until ctx ends. What takes too long is a figure too.
func (n *stormNode) scrapeUntil(ctx context.Context) {
	for ; ctx.Err() == nil; time.Sleep(time.Second) {
		_ = n.scrape(ctx)
	}
	slices.Sort(n.scrapes)
}

// ask has a part of the storm cross a limit.
func (s *director) ask(part string, limit int) {
	begin := time.Now()
	left := must.Get(strconv.Atoi(strings.TrimSpace(s.do(http.MethodPost, part, strconv.Itoa(limit)))))(s)
	s.Logf("%s: %d is left after %s", part, left, time.Since(begin).Round(time.Millisecond))
}

// do has the actor do something, and returns what it says.
func (s *director) do(method, path, body string) string {
	ctx, cancel := context.WithTimeout(s.Context(), stormPatience)
	defer cancel()
	req := must.Get(http.NewRequestWithContext(ctx, method, s.actor+path, strings.NewReader(body)))(s)
	resp := must.Get(http.DefaultClient.Do(req))(s)
	defer resp.Body.Close()
	text := string(must.Get(io.ReadAll(resp.Body))(s))
	if resp.StatusCode != http.StatusOK {
		s.Fatalf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	return text
}

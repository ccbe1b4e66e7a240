// Package cluster deploys nodeprobe as users do: its image and its manifests, by
// kubectl, on a whole Kubernetes that runs on this machine, and looks at what
// becomes of the Node. Its tests are in "make e2e".
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/prometheus"
)

var (
	pods      = flag.Bool("pods", false, "run pods on this machine, and put it under pressure, for minutes")
	besideFor = flag.Duration("beside", 20*time.Second, "how long a kubelet's conditions flip beside ours")
)

func TestMain(m *testing.M) {
	pressure.Main()
	flag.Parse()
	if !*pods || os.Geteuid() != 0 {
		os.Exit(build.Main(m))
	}
	code, err := confine(func() int { return build.Main(m) })
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func needPods(t *testing.T) {
	t.Helper()
	if !*pods {
		t.Skip("takes minutes and disturbs the machine; make e2e runs it")
	}
	need.Root(t)
	for command, pkg := range map[string]string{
		"containerd": "containerd", "ctr": "containerd", "runc": "runc", "buildah": "buildah",
		"mkfs.ext4": "e2fsprogs", "mount": "mount", "prometheus": "prometheus", "make": "make",
	} {
		need.Command(t, command, pkg)
	}
}

// Deployed as users deploy it, nodeprobe tells of each pressure beside the kubelet
// and before it, names the pod whose process was killed, is what Prometheus alerts
// by, writes nothing but its own, and leaves nothing behind.
func TestCluster(t *testing.T) {
	needPods(t)
	s := newStage(t)
	s.startPrometheus()
	for _, variant := range []struct{ name, kustomization string }{
		{"base", "deploy/base"},
		{"least privilege", "deploy/overlays/least-privilege"},
	} {
		t.Run(variant.name, func(t *testing.T) {
			if _, err := os.Stat(filepath.Join(s.root, variant.kustomization)); errors.Is(err, fs.ErrNotExist) {
				t.Skip("there is no " + variant.kustomization)
			}
			begin := time.Now()
			overlay := s.overlay(t, variant.kustomization)
			pod := s.install(t, overlay)
			for _, l := range s.loads {
				s.wait(t, ours, begin, nodewatch.Has(ourCondition(l), corev1.ConditionFalse))
			}
			programs := s.bpfPrograms(t, pod)
			s.oomKill(t)
			s.pressAndRelease(t, func() { s.wantAlert(t, "firing") })
			s.wantAlert(t, "inactive")
			s.wantLead(t)
			s.wantHealthy(t, pod)
			node := must.Get(s.node(t))(s.t)
			wantOwns(t, node)
			s.uninstall(t, overlay)
			s.wantUnloaded(t, programs)
			wantOnlyOurs(t, s.cp, identity, nodeName, begin)
			s.wantNothingLeft()
		})
	}
}

const (
	// transition is how long the kubelet and nodeprobe keep a condition True.
	transition = time.Second
	// refill is how long nodeprobe takes to be allowed another write when it has
	// written as often as it may.
	refill = 10 * time.Second
)

// ourCondition is ours about what the load is about.
func ourCondition(l *pressure.Load) corev1.NodeConditionType { return "nodeprobe.dev/" + l.Condition }

// pressAndRelease puts the node under every pressure and takes it all away again.
// Our conditions are to follow at once, and the kubelet's own do.
func (s *scene) pressAndRelease(t *testing.T, meanwhile func()) {
	t.Helper()
	for _, phase := range []struct {
		what   string
		status corev1.ConditionStatus
		do     func(*pressure.Load) error
	}{
		{"press", corev1.ConditionTrue, func(l *pressure.Load) error { return l.Press() }},
		{"release", corev1.ConditionFalse, func(l *pressure.Load) error { return l.Release() }},
	} {
		begun := map[*pressure.Load]time.Time{}
		for _, l := range s.loads {
			begun[l] = time.Now()
			must.OK(t, phase.do(l))
			if phase.status == corev1.ConditionTrue {
				t.Cleanup(func() { _ = l.Release() }) // once more, if the test ends early
			}
		}
		for _, l := range s.loads {
			took := s.wait(t, ours, begun[l], nodewatch.Has(ourCondition(l), phase.status)).Sub(begun[l])
			theirs := s.wait(t, patience, begun[l], nodewatch.Has(l.Condition, phase.status)).Sub(begun[l])
			fmt.Printf("RESULT %s_%s_to_%s=%.2f s peer=kubelet:%.2f\n", phase.what, l.Condition, phase.status, took.Seconds(), theirs.Seconds())
		}
		if phase.status == corev1.ConditionTrue {
			meanwhile()
			// A write is saved up for every ten seconds: one for the first release,
			// and one for the others, which come within half a second of it.
			time.Sleep(time.Until(begun[s.loads[len(s.loads)-1]].Add(2*refill + time.Second)))
		}
	}
}

// wantLead waits until nodeprobe has counted an episode of each pressure which the
// kubelet saw too, and wants to have been first.
func (s *scene) wantLead(t *testing.T) {
	t.Helper()
	for _, l := range s.loads {
		s.eventually(t, "the kubelet's "+string(l.Condition)+" is compared with ours", func() error {
			metrics, err := agent.ReadMetrics(t.Context(), s.metricsAddress())
			if err != nil {
				return err
			}
			label := fmt.Sprintf("{condition=%q", l.Condition)
			both, alone := metrics["nodeprobe_shadow_episodes_total"+label+`,seen_by="both"}`], metrics["nodeprobe_shadow_episodes_total"+label+`,seen_by="kubelet"}`]
			sum, count := metrics["nodeprobe_shadow_lead_seconds_sum"+label+"}"], metrics["nodeprobe_shadow_lead_seconds_count"+label+"}"]
			if both < 1 || alone > 0 || count < 1 || sum <= 0 {
				return fmt.Errorf("%v episodes seen by both, %v by the kubelet alone, %v leads of %v s", both, alone, count, sum)
			}
			fmt.Printf("RESULT lead_%s=%.2f s\n", l.Condition, sum/count)
			return nil
		})
	}
}

func within(t *testing.T, limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

const alertName = "NodeUnderPressure"

// startPrometheus starts one that scrapes nodeprobe where a node's monitoring would,
// in the host's network.
func (s *scene) startPrometheus() {
	s.t.Helper()
	dir := filepath.Join(s.dir, "prometheus")
	must.OK(s.t, os.Mkdir(dir, 0o755))
	rules, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "nodeprobe", "rules": []any{
		map[string]any{"alert": alertName, "expr": "nodeprobe_condition_status == 1"},
	}}}})
	must.OK(s.t, err)
	must.OK(s.t, os.WriteFile(filepath.Join(dir, "rules.yaml"), rules, 0o600)) // JSON is YAML too
	s.prometheus = prometheus.StartForTest(s.t, dir, map[string]any{
		"global":         map[string]string{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files":     []string{"rules.yaml"},
		"scrape_configs": []any{map[string]any{"job_name": "nodeprobe", "static_configs": []any{map[string]any{"targets": []string{s.metricsAddress()}}}}},
	})
}

func (s *scene) wantAlert(t *testing.T, state string) {
	t.Helper()
	for _, l := range s.loads {
		s.eventually(t, "the alert about "+string(l.Condition)+" is "+state, func() error {
			alerts, err := s.prometheus.Alerts(t.Context())
			if err != nil {
				return err
			}
			is := "inactive"
			for _, a := range alerts {
				if a.Labels["alertname"] == alertName && a.Labels["condition"] == string(l.Condition) {
					is = a.State
				}
			}
			if is != state {
				return fmt.Errorf("it is %s", is)
			}
			return nil
		})
	}
}

// Package cluster deploys nodeprobe as users do: its image and its manifests, by
// kubectl, on a whole Kubernetes that runs on this machine, and looks at what
// becomes of the Node. Its tests are in "make e2e".
package cluster

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

var (
	pods      = flag.Bool("pods", false, "run pods on this machine, and put it under pressure, for minutes")
	besideFor = flag.Duration("beside", 20*time.Second, "how long a kubelet's conditions flip beside ours")
)

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(build.Main(m))
}

func needPods(t *testing.T) {
	t.Helper()
	if !*pods {
		t.Skip("takes minutes and disturbs the machine; make e2e runs it")
	}
	need.Root(t)
	for _, command := range []string{"containerd", "runc", "buildah", "mkfs.ext4", "mount", "make"} {
		need.Command(t, command, strings.Replace(command, "mkfs.ext4", "e2fsprogs", 1))
	}
}

// Deployed as users deploy it, nodeprobe reports each pressure beside the kubelet
// and before it, in its metrics too, names the pod whose process was killed, writes
// nothing but its own, and leaves nothing behind.
func TestCluster(t *testing.T) {
	needPods(t)
	if os.Getenv(confinedEnv) == "" {
		confine(t)
		return
	}
	hide(t)
	whole := newStage(t)
	for _, kustomization := range []string{"deploy/base", "deploy/overlays/least-privilege"} {
		t.Run(filepath.Base(kustomization), func(t *testing.T) {
			s := *whole
			s.t = t
			begin := time.Now()
			overlay := s.overlay(kustomization)
			pod := s.install(overlay)
			for _, l := range s.loads {
				s.wait(ours, begin, nodewatch.Has(ourCondition(l), corev1.ConditionFalse))
			}
			programs := s.bpfPrograms(pod)
			s.oomKill()
			s.pressAndRelease()
			s.wantLead()
			s.wantHealthy(pod)
			s.wantOwns()
			s.uninstall(overlay)
			s.wantUnloaded(programs)
			wantOnlyOurs(t, s.cp, identity, nodeName, begin)
			s.wantNothingLeft()
		})
	}
}

const (
	// transition is how long the kubelet and nodeprobe keep a condition True.
	transition = time.Second
	// refill is the time after which nodeprobe may make another write.
	refill = 10 * time.Second
)

// ourCondition is nodeprobe's counterpart of the load's condition.
func ourCondition(l *pressure.Load) corev1.NodeConditionType { return "nodeprobe.dev/" + l.Condition }

// pressAndRelease puts the node under every pressure and takes it all away again.
// Our conditions must follow within a time; the kubelet's own only have to follow.
func (s *scene) pressAndRelease() {
	s.t.Helper()
	for _, phase := range []struct {
		what   string
		status corev1.ConditionStatus
		metric float64
		do     func(*pressure.Load) error
	}{
		{"press", corev1.ConditionTrue, 1, func(l *pressure.Load) error { return l.Press() }},
		{"release", corev1.ConditionFalse, 0, func(l *pressure.Load) error { return l.Release() }},
	} {
		begun := map[*pressure.Load]time.Time{}
		for _, l := range s.loads {
			begun[l] = time.Now()
			must.OK(s.t, phase.do(l))
			s.t.Cleanup(func() { _ = l.Release() }) // once more, if the test ends early
		}
		for _, l := range s.loads {
			took := s.wait(ours, begun[l], nodewatch.Has(ourCondition(l), phase.status)).Sub(begun[l])
			theirs := s.wait(patience, begun[l], nodewatch.Has(l.Condition, phase.status)).Sub(begun[l])
			series := fmt.Sprintf("nodeprobe_node_condition{condition=%q,status=\"true\"}", l.Condition)
			if got := must.Get(agent.ReadMetrics(s.t.Context(), s.metricsAddress()))(s.t)[series]; got != phase.metric {
				s.t.Errorf("%s is %v, want %v", series, got, phase.metric)
			}
			fmt.Printf("RESULT %s_%s_to_%s=%.2f s peer=kubelet:%.2f\n", phase.what, l.Condition, phase.status, took.Seconds(), theirs.Seconds())
		}
		if phase.status == corev1.ConditionTrue {
			// A write is saved up for every ten seconds: one for the first release,
			// and one for the others, which come within half a second of it.
			time.Sleep(time.Until(begun[s.loads[len(s.loads)-1]].Add(2*refill + time.Second)))
		}
	}
}

// wantLead waits until nodeprobe has counted an episode of each pressure that the
// kubelet posted too, and later.
func (s *scene) wantLead() {
	s.t.Helper()
	for _, l := range s.loads {
		stage.Eventually(s.t, "the kubelet's "+string(l.Condition)+" is compared with ours", func() error {
			metrics, err := agent.ReadMetrics(s.t.Context(), s.metricsAddress())
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

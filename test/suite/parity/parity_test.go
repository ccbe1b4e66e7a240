// Package parity compares what nodeprobe writes with what a real kubelet writes on
// the same machine with the same configuration, under a real control plane: the
// Nodes field for field, Leases, Events, and what both send to the API server at
// the same transitions.
package parity

import (
	"flag"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

var describeDir = flag.String("describe", "", "an existing directory that gets what kubectl describe says of each node")

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(controlplane.Main(m))
}

// One test, for one kubelet: two on a machine would fight over its sysctls and
// sockets, and to start one for each pressure would take minutes.
func TestParity(t *testing.T) {
	s := start(t)
	s.await("at first", time.Time{}, calm)
	s.compareNodes("at first", both, calm)
	s.compareFirst()
	s.begin()

	for _, load := range s.loads {
		s.transition(load.Condition, corev1.ConditionTrue, both, load.Press)
		s.transition(load.Condition, corev1.ConditionFalse, both, load.Release)
	}
	s.cordon(true)
	s.cordon(false)
	s.compareHeartbeats()

	s.transition(corev1.NodeReady, corev1.ConditionFalse, without, s.runtime.Stop)
	s.transition(corev1.NodeReady, corev1.ConditionTrue, without, s.startRuntime)

	s.compareWrites()
	s.compareLeases()
	s.compareEvents()
	s.compareBare()
	s.allSeen()
	s.describe()
}

package node

import (
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// BenchmarkPass is what it costs to find out that nothing has to be posted.
func BenchmarkPass(b *testing.B) {
	facts := machineFacts(apitest.Epoch)
	content := New(Config{
		NodeName: apitest.NodeName, Addresses: Addresses{NodeName: apitest.NodeName, Hostname: apitest.NodeName},
		Resources: Resources{MaxPods: 110, LocalStorageCapacityIsolation: true}, KubeletVersion: "v1.0.0", Port: 10250,
	})
	now := time.Now()
	content.Observe(facts)
	node, _, err := content.Initial(b.Context(), now)
	if err != nil {
		b.Log(err) // a machine without a network
	}
	b.ReportAllocs()
	for b.Loop() {
		next := node.DeepCopy()
		if err := content.pass(&facts, now).apply(b.Context(), next); err != nil {
			b.Log(err)
		}
		if statusChanged(&node.Status, &next.Status) {
			b.Fatal("changed")
		}
	}
}

package status

import (
	"testing"
	"time"
)

// BenchmarkPass is what it costs to find out that nothing has to be posted.
func BenchmarkPass(b *testing.B) {
	facts := machineFacts(epoch)
	cfg := (Config{
		NodeName: nodeName, Addresses: Addresses{NodeName: nodeName, Hostname: nodeName},
		Resources: Resources{MaxPods: 110, LocalStorageCapacityIsolation: true}, KubeletVersion: "v1.0.0", Port: 10250,
	}).withDefaults()
	now := time.Now()
	node, err := InitialNode(b.Context(), &cfg, &facts, now)
	if err != nil {
		b.Log(err) // a machine without a network
	}
	b.ReportAllocs()
	for b.Loop() {
		next := node.DeepCopy()
		if err := apply(b.Context(), next, setters(&cfg, &facts, now)); err != nil {
			b.Log(err)
		}
		if statusChanged(&node.Status, &next.Status) {
			b.Fatal("changed")
		}
	}
}

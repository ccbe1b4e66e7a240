package cri

import (
	"testing"
	"time"
)

// The kubelet's words, from pkg/kubelet/runtime.go and updateRuntimeUp.
func TestUnready(t *testing.T) {
	now := time.Unix(1000, 0)
	ok := Status{Runtime: Condition{Type: "RuntimeReady", Status: true}, Network: Condition{Type: "NetworkReady", Status: true}}
	read := func(s Status, lastReady time.Time) Snapshot {
		return Snapshot{
			Endpoint: "/x", Status: s, LastReady: lastReady,
			Reads: [NumCalls]Read{CallStatus: {Time: now}},
		}
	}
	bad := Status{
		Runtime: Condition{Type: "RuntimeReady", Reason: "Stopping", Message: "soon"},
		Network: Condition{Type: "NetworkReady", Reason: "NetworkPluginNotReady", Message: "no CNI"},
	}
	for name, test := range map[string]struct {
		snap Snapshot
		want string
	}{
		"no runtime":   {Snapshot{}, ""},
		"ready":        {read(ok, now), ""},
		"still ready":  {read(ok, now.Add(-30*time.Second+1)), ""},
		"silent":       {read(ok, now.Add(-30*time.Second)), "container runtime is down"},
		"not yet read": {Snapshot{Endpoint: "/x"}, "container runtime status check may not have completed yet\nnetwork state unknown"},
		"bad": {read(bad, now), "container runtime not ready: RuntimeReady=false reason:Stopping message:soon\n" +
			"container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:no CNI"},
		"bad from the start": {
			read(Status{Network: ok.Network, Runtime: bad.Runtime}, time.Time{}),
			"container runtime status check may not have completed yet\n" +
				"container runtime not ready: RuntimeReady=false reason:Stopping message:soon",
		},
		"other conditions": {read(Status{}, now), "container runtime not ready: <nil>\ncontainer runtime network not ready: <nil>"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := errorText(test.snap.Unready(now)); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

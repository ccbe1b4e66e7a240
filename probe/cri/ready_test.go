package cri

import (
	"testing"
	"time"
)

// The kubelet's words, from pkg/kubelet/runtime.go and updateRuntimeUp.
func TestUnready(t *testing.T) {
	now := time.Unix(1000, 0)
	ok := Status{Runtime: Condition{Type: "RuntimeReady", Status: true}, Network: Condition{Type: "NetworkReady", Status: true}}
	read := func(s Status, silent time.Duration) Snapshot {
		return Snapshot{
			Endpoint: "/x", Status: s, LastReady: now.Add(-silent), Silent: silent,
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
		"ready":        {read(ok, 0), ""},
		"still ready":  {read(ok, 30*time.Second-1), ""},
		"silent":       {read(ok, 30*time.Second), "container runtime is down"},
		"not yet read": {Snapshot{Endpoint: "/x"}, "container runtime status check may not have completed yet\nnetwork state unknown"},
		"bad": {read(bad, 0), "container runtime not ready: RuntimeReady=false reason:Stopping message:soon\n" +
			"container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:no CNI"},
		"bad from the start": {
			Snapshot{
				Endpoint: "/x", Status: Status{Network: ok.Network, Runtime: bad.Runtime},
				Reads: [NumCalls]Read{CallStatus: {Time: now}},
			},
			"container runtime status check may not have completed yet\n" +
				"container runtime not ready: RuntimeReady=false reason:Stopping message:soon",
		},
		"other conditions": {read(Status{}, 0), "container runtime not ready: <nil>\ncontainer runtime network not ready: <nil>"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := errorText(test.snap.Unready()); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

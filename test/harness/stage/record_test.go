package stage

import "testing"

func TestOnlyConditions(t *testing.T) {
	for _, test := range []struct {
		patch string
		ok    bool
	}{
		{`{"status":{"conditions":[{"type":"nodeprobe.dev/A","status":"True"},{"$patch":"delete","type":"nodeprobe.dev/B"}]}}`, true},
		{`{"status":{"conditions":[{"type":"nodeprobe.dev/A"},{"type":"Ready"}]}}`, false},
		{`{"status":{"conditions":[]}}`, false},
		{`{"status":{"conditions":[{"type":"nodeprobe.dev/A"}],"images":[]}}`, false},
		{`{"metadata":{},"status":{"conditions":[{"type":"nodeprobe.dev/A"}]}}`, false},
		{`{"status":{"conditions":[{"type":"nodeprobe.dev/A"}],"$setElementOrder/conditions":[{"type":"Ready"}]}}`, false},
		{`[]`, false},
	} {
		if err := OnlyConditions([]byte(test.patch), "nodeprobe.dev/"); (err == nil) != test.ok {
			t.Errorf("%s: %v", test.patch, err)
		}
	}
}

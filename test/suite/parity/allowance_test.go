package parity

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
)

// allowance is what may differ, by its path, and why. Whatever else differs is an
// error, and so is a line that has nothing to allow any more.
type allowance map[string]string

const promises = "are promises about running pods"

// What a kubelet and a nodeprobe may differ in.
var (
	both = &allowance{
		"status.declaredFeatures": promises,
	}
	// The Node is created.
	atFirst = &allowance{
		"status.declaredFeatures": promises,
		"status.conditions[3]":    "is Ready, which a kubelet is not before it has made its CSINode",
	}
	// Both have lost their container runtime.
	without = &allowance{
		"status.declaredFeatures":                 promises,
		"status.nodeInfo.containerRuntimeVersion": "is Unknown to a kubelet meanwhile; nodeprobe keeps what it knew",
	}
	// Only the kubelet has a container runtime.
	bare = &allowance{
		"status.declaredFeatures":                 promises,
		"status.nodeInfo.containerRuntimeVersion": "nobody tells",
		"status.images":                           "nobody tells",
		"status.runtimeHandlers":                  "nobody tells",
		"status.features":                         "nobody tells",
	}
)

// line returns which line of the list allows a difference, "" if none does.
func (a allowance) line(path string) string {
	for prefix := range a {
		if path == prefix || strings.HasPrefix(path, prefix+".") || strings.HasPrefix(path, prefix+"[") {
			return prefix
		}
	}
	return ""
}

// compare returns what differs and must not, and what differs and may.
func compare(theirs, ours any, allowed *allowance) (bad []string, seen map[string]bool) {
	reporter := &differences{}
	cmp.Equal(theirs, ours, cmp.Reporter(reporter))
	seen = map[string]bool{}
	for _, d := range reporter.found {
		if line := allowed.line(d.path); line != "" {
			seen[line] = true
			continue
		}
		bad = append(bad, fmt.Sprintf("%s: the kubelet has %s, nodeprobe %s", d.path, d.theirs, d.ours))
	}
	return bad, seen
}

// note keeps which lines of an allowance were of use.
func (s *stage) note(allowed *allowance, seen map[string]bool) {
	if s.differs[allowed] == nil {
		s.differs[allowed] = map[string]bool{}
	}
	for line := range seen {
		s.differs[allowed][line] = true
	}
}

// allSeen complains of lines that stand for nothing, and shows the others.
func (s *stage) allSeen() {
	s.t.Helper()
	shown := map[string]bool{}
	for allowed, seen := range s.differs {
		for line, why := range *allowed {
			if !seen[line] {
				s.t.Errorf("%s (%s) may differ, but never did", line, why)
			}
			shown["differs as documented: "+line+": "+why] = true
		}
	}
	for _, text := range slices.Sorted(maps.Keys(shown)) {
		s.t.Log(text)
	}
}

package cgroup

import (
	"errors"
	"testing"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"
)

func TestMemory(t *testing.T) {
	for name, test := range map[string]struct {
		files   []string
		dir     string
		want    Version
		version string
		pods    string
		mounted bool
		foreign bool
	}{
		"v2":                 {[]string{"memory.stat", "cgroup.controllers", "kubepods.slice/memory.stat"}, "", V2, "v2", "kubepods.slice", true, false},
		"v2, a container's":  {[]string{"memory.stat", "memory.current", "kubepods/memory.stat"}, "", V2, "v2", "kubepods", false, true},
		"v1":                 {[]string{"memory/memory.usage_in_bytes", "memory/memory.stat", "memory/release_agent"}, "memory", V1, "v1", "", false, false},
		"v1, a container's":  {[]string{"memory/memory.usage_in_bytes", "memory/kubepods/tasks"}, "memory", V1, "v1", "memory/kubepods", false, true},
		"v1, and v2 beside":  {[]string{"memory/memory.usage_in_bytes", "memory/release_agent", "unified/cgroup.controllers"}, "memory", V1, "v1", "", true, false},
		"unified":            {[]string{"unified/memory.stat", "unified/cgroup.controllers"}, "unified", V2, "v2", "", true, false},
		"both of pods":       {[]string{"memory.stat", "kubepods/x", "kubepods.slice/x"}, "", V2, "v2", "kubepods.slice", false, false},
		"v1, not that of v1": {[]string{"memory/tasks"}, "", None, "none", "", false, false},
		"none":               {nil, "", None, "none", "", false, false},
		"no controller":      {[]string{"cgroup.controllers"}, "", None, "none", "", true, false},
	} {
		root := probetest.NewRoot(t)
		for _, file := range test.files {
			root.Write(t, file, "")
		}
		dir, version := Memory(root.Dir)
		if dir != root.Path(test.dir) || version != test.want || version.String() != test.version {
			t.Errorf("%s: %s, %s; want %s, %s", name, dir, version, root.Path(test.dir), test.want)
		}
		pods := ""
		if test.pods != "" {
			pods = root.Path(test.pods)
		}
		if got := Pods(dir); got != pods {
			t.Errorf("%s: pods in %q, want %q", name, got, pods)
		}
		if got := Mounted(root.Dir); got != test.mounted {
			t.Errorf("%s: mounted %t, want %t", name, got, test.mounted)
		}
		if err := CheckRoot(dir, version); errors.Is(err, ErrNamespace) != test.foreign {
			t.Errorf("%s: %v", name, err)
		}
	}
}

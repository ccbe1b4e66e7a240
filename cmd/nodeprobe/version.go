package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// release is set by the linker in a release build.
var release = "v0.1.0-dev"

// version is shown as the kubelet's version, so it reads as one: a semantic
// version, of which only one part may begin with "+".
func version() string {
	if strings.Contains(release, "+") {
		return release + ".nodeprobe"
	}
	return release + "+nodeprobe"
}

// revision returns the commit that the binary was built from.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	rev, dirty := "unknown", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			rev = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	return rev + dirty
}

func versionLine() string {
	return fmt.Sprintf("nodeprobe %s (commit %s, %s, %s/%s)", release, revision(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func buildInfo() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "nodeprobe_build_info",
		Help: "What this program was built from; always 1.",
		ConstLabels: prometheus.Labels{
			"version": release, "revision": revision(), "goversion": runtime.Version(), "goarch": runtime.GOARCH,
		},
	})
	g.Set(1)
	return g
}

package cri

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/test/harness/containerd"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

var benchReport = flag.Bool("bench-report", false, "measure for some seconds what asking containerd costs and print RESULT lines")

// TestBenchReport asserts nothing about time: a busy machine would fail it.
func TestBenchReport(t *testing.T) {
	if !*benchReport {
		t.Skip("without -bench-report")
	}
	const rounds, turn = 101, 20
	path := startContainerd(t, t.TempDir()).Socket
	containerd.ImportImages(t, path, 50)
	rarely := must.Get(cri.New(cri.Config{Endpoint: "unix://" + path, ImageInterval: time.Hour}))(t)
	t.Cleanup(rarely.Close)
	everything := newSampler(t, path)
	for _, c := range []struct {
		name    string
		sampler *cri.Sampler
	}{{"cri_sample", rarely}, {"cri_sample_50_images", everything}} {
		var us []float64
		for range rounds {
			start := time.Now()
			for range turn {
				mustRead(t, c.sampler)
			}
			us = append(us, float64(time.Since(start).Microseconds())/turn)
		}
		slices.Sort(us)
		fmt.Printf("RESULT %s_us=%.0f us\n", c.name, us[rounds/2])
		fmt.Printf("RESULT %s_allocs=%.0f allocs/op\n", c.name, testing.AllocsPerRun(200, func() { mustRead(t, c.sampler) }))
	}
}

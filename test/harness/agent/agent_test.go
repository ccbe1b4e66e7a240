package agent

import (
	"maps"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

func TestParseMetrics(t *testing.T) {
	got, err := parseMetrics([]byte(`# HELP nodeprobe_tier_info How much.
# TYPE nodeprobe_tier_info gauge
nodeprobe_tier_info{reason="no psi=1 here",tier="procfs"} 1

nodeprobe_bpf_tick_seconds_total 1.5e-05
nodeprobe_sample_seconds_bucket{le="+Inf"} 4
`))
	must.OK(t, err)
	want := map[string]float64{
		`nodeprobe_tier_info{reason="no psi=1 here",tier="procfs"}`: 1,
		`nodeprobe_bpf_tick_seconds_total`:                          1.5e-05,
		`nodeprobe_sample_seconds_bucket{le="+Inf"}`:                4,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, bad := range []string{"nothing\n", "a_series x\n", "a_series \n"} {
		if got, err := parseMetrics([]byte(bad)); err == nil {
			t.Errorf("%q: got %v, want an error", bad, got)
		}
	}
}

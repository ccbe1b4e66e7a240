package main

import (
	"bytes"
	"os"
	"regexp"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a control plane; -short is set")
	}
	var stdout bytes.Buffer
	// Long enough for a sample, a renewal and a scrape.
	must.OK(t, run(t.Context(), []string{"-window", "12s", "-warmup", "100ms"}, &stdout, os.Stderr))
	t.Logf("\n%s", &stdout)
	for _, want := range []string{
		`idle_observe_wakeups=\d+\.\d\d /s budget=3`,
		`idle_own_wakeups=\d+\.\d\d /s budget=3`,
		`idle_own_cpu=\d+\.\d\d ms/min budget=10`,
		`idle_own_wakeups_lease=-?\d+\.\d\d /s`,
		`idle_own_cpu_scrape=-?\d+\.\d\d ms/min`,
	} {
		if !regexp.MustCompile(`(?m)^RESULT ` + want + `$`).Match(stdout.Bytes()) {
			t.Errorf("no line like RESULT %s", want)
		}
	}
}

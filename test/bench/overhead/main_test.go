package main

import (
	"bytes"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
)

func TestRun(t *testing.T) {
	need.Root(t)
	if testing.Short() {
		t.Skip("builds nodeprobe; -short is set")
	}
	var stdout bytes.Buffer
	must.OK(t, run(t.Context(), []string{"-dir", t.TempDir(), "-rounds", "1", "-length", "10ms"}, &stdout, os.Stderr))
	t.Logf("\n%s", &stdout)
	for _, want := range []string{
		`overhead_fork_ratio=\d+\.\d{4} ratio budget=\d+\.\d{4} peer=off_off:\d+\.\d{4}`,
		`overhead_thread_stderr=\d+\.\d{4} ratio peer=off_off:\d+\.\d{4}`,
		`overhead_write_ratio=.*`,
		`bpf_task_newtask_ns=\d+\.\d ns budget=100`,
		`bpf_sched_process_free_ns=\d+\.\d ns budget=100`,
	} {
		if !regexp.MustCompile(`(?m)^RESULT ` + want + `$`).Match(stdout.Bytes()) {
			t.Errorf("no line like RESULT %s", want)
		}
	}
}

func TestLoops(t *testing.T) {
	loops, closeAll, err := newLoops(t.TempDir(), os.Stderr)
	must.OK(t, err)
	for _, l := range loops {
		ns, err := l.run(time.Millisecond)
		if err != nil || ns <= 0 {
			t.Errorf("loop %s: %v ns, %v", l.name, ns, err)
		}
	}
	closeAll()
	for _, l := range loops[2:] {
		if l.once() == nil {
			t.Errorf("loop %s goes on without its file", l.name)
		}
	}
}

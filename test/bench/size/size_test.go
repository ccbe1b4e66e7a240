package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

func TestCount(t *testing.T) {
	root := t.TempDir()
	for name, lines := range map[string]int{
		"a.go": 3, "a_test.go": 5, "bpf/x_bpfel.go": 100, "bpf/x.go": 2501, "bpf/testdata/y.go": 100, "cmd/nodeprobe/main.go": 1501, ".git/z.go": 7, "test/b.go": 4, "test/x_test.go": 6, "c.txt": 9,
	} {
		must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		must.OK(t, os.WriteFile(filepath.Join(root, name), []byte(strings.Repeat("x\n", lines)), 0o600))
	}
	var out strings.Builder
	must.OK(t, program.Run(t.Context(), "test", nil, &out, io.Discard, func(p *program.P) { program.Print(p.Out, count(p, root)) }))
	const want = `RESULT lines_total{part="product"}=4005 lines
RESULT lines_total{part="test"}=10 lines budget=20000
RESULT lines_total{part="unit tests"}=5 lines
RESULT lines{.}=3 lines budget=2500
RESULT lines{bpf}=2501 lines budget=2500
RESULT lines{cmd/nodeprobe}=1501 lines budget=1500
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}

// Command size counts lines of Go: of each package of the product without its tests,
// and of the product, its tests and test/ in all. Generated code does not count. It
// fails if a count is over its budget.
//
//	go run ./bench/size
package main

import (
	"bytes"
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// budgets are those of the packages and sums that have one of their own.
var budgets = map[string]float64{"lines{cmd/nodeprobe}": 1500, `lines_total{part="test"}`: 24_500}

const packageBudget = 2500

// support are packages that only tests import, and count as tests.
var support = []string{"internal/judge/judgetest", "internal/testtree", "probe/cri/critest", "probe/internal/probetest", "status/internal/apitest"}

func main() { program.Main("size", run) }

func run(p *program.P) {
	p.Parse()
	count(p, build.RootForTest(p))
}

func count(p *program.P, root string) {
	packages, totals := map[string]int{}, map[string]int{}
	must.OK(p, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		data := must.Get(os.ReadFile(path))(p)
		if bytes.HasPrefix(data, []byte("// Code generated ")) {
			return nil
		}
		name := must.Get(filepath.Rel(root, path))(p)
		lines, dir := bytes.Count(data, []byte("\n")), filepath.Dir(name)
		switch {
		case strings.HasPrefix(name, "test/"):
			totals["test"] += lines
		case strings.HasSuffix(name, "_test.go") || slices.Contains(support, dir):
			totals["unit tests"] += lines
		default:
			packages[dir] += lines
			totals["product"] += lines
		}
		return nil
	}))
	var figures []program.Figure
	add := func(name string, lines int, budget float64) {
		f := program.Figure{Name: name, Value: float64(lines), Unit: "lines", Budget: cmp.Or(budgets[name], budget)}
		if f.Budget > 0 && f.Value > f.Budget {
			p.Errorf("%s: %d lines, budget %g", name, lines, f.Budget)
		}
		figures = append(figures, f)
	}
	for name, lines := range packages {
		add("lines{"+name+"}", lines, packageBudget)
	}
	for part, lines := range totals {
		add(`lines_total{part="`+part+`"}`, lines, 0)
	}
	slices.SortFunc(figures, func(a, b program.Figure) int { return cmp.Compare(a.Name, b.Name) })
	p.Print(figures)
}

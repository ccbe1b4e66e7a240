// Command size counts lines of Go: of each package of the product without its tests,
// and of the product, its tests and test/ in all. It fails if one is over its budget.
//
//	go run ./bench/size
package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

const (
	packageBudget = 2500
	commandBudget = 1500 // of cmd/nodeprobe itself
	testBudget    = 20_000
)

func main() { program.Main("size", run) }

func run(p *program.P) {
	p.Parse()
	figures := count(p, filepath.Dir(must.Get(build.Root())(p)))
	program.Print(p.Out, figures)
	for _, f := range figures {
		if f.Budget > 0 && f.Value > f.Budget {
			p.Errorf("%s: %.0f lines, budget %g", f.Name, f.Value, f.Budget)
		}
	}
}

func count(p *program.P, root string) (all []program.Figure) {
	packages, totals := map[string]int{}, map[string]int{"product": 0, "unit tests": 0, "test": 0}
	must.OK(p, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return fs.SkipDir
		}
		name, _ := filepath.Rel(root, path) // path is below root
		// bpf2go makes these.
		if d.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_bpfel.go") {
			return nil
		}
		lines := bytes.Count(must.Get(os.ReadFile(path))(p), []byte("\n"))
		switch {
		case strings.HasPrefix(name, "test"+string(filepath.Separator)):
			totals["test"] += lines
		case strings.HasSuffix(name, "_test.go"):
			totals["unit tests"] += lines
		default:
			packages[filepath.Dir(name)] += lines
			totals["product"] += lines
		}
		return nil
	}))
	for name, lines := range packages {
		f := program.Figure{Name: "lines{" + name + "}", Value: float64(lines), Unit: "lines", Budget: packageBudget}
		if name == filepath.Join("cmd", "nodeprobe") {
			f.Budget = commandBudget
		}
		all = append(all, f)
	}
	for part, lines := range totals {
		f := program.Figure{Name: "lines_total{part=\"" + part + "\"}", Value: float64(lines), Unit: "lines"}
		if part == "test" {
			f.Budget = testBudget
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b program.Figure) int { return strings.Compare(a.Name, b.Name) })
	return all
}

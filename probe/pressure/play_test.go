package pressure

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the verdicts in testdata/*.txt; read the diff before you commit it")

// command plays a line of a script, and returns the indented lines that belong below it.
type command func(name string, args []string) (outcome string, err error)

// playFiles plays scripts, each with commands of its own, and wants every outcome to
// be what the script says.
func playFiles(t *testing.T, pattern string, newScript func() command) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			script, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			played, err := play(string(script), newScript())
			if err != nil {
				t.Fatalf("%s:%v", file, err)
			}
			if *update {
				if err := os.WriteFile(file, []byte(played), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(script), played); diff != "" {
				t.Errorf("%s: -want +got:\n%s", file, diff)
			}
		})
	}
}

// play returns the script with the outcomes as they are.
func play(script string, do command) (string, error) {
	var out strings.Builder
	for i, line := range strings.Split(strings.TrimSuffix(script, "\n"), "\n") {
		if strings.HasPrefix(line, " ") {
			continue // an old outcome
		}
		out.WriteString(line + "\n")
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		outcome, err := do(fields[0], fields[1:])
		if err != nil {
			return "", fmt.Errorf("%d: %q: %w", i+1, line, err)
		}
		out.WriteString(outcome)
	}
	return out.String(), nil
}

package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
)

// mostExposed is tenths of what "systemd-analyze security" may come to; without any
// of the unit's restrictions it is 96.
const mostExposed = "25"

func TestSystemd(t *testing.T) {
	dir := filepath.Join(build.RootForTest(t), "deploy", "systemd")
	binary := build.ProductForTest(t)
	t.Run("product accepts the configuration", func(t *testing.T) {
		run(t, nil, binary, "config", "check", filepath.Join(dir, "config.yaml"))
	})
	text := must.Get(os.ReadFile(filepath.Join(dir, "nodeprobe.service")))(t)
	command := regexp.MustCompile(`(?m)^ExecStart=(\S+) (.*)$`).FindSubmatch(text)
	if command == nil {
		t.Fatalf("no ExecStart in\n%s", text)
	}
	t.Run("product accepts the arguments", func(t *testing.T) {
		run(t, nil, binary, append(strings.Fields(string(command[2])), "--help")...)
	})

	// systemd wants the program to be there.
	unit := filepath.Join(t.TempDir(), "nodeprobe.service")
	must.OK(t, os.WriteFile(unit, []byte(strings.Replace(string(text), string(command[1]), binary, 1)), 0o644))
	t.Run("systemd accepts the unit", func(t *testing.T) {
		need.Command(t, "systemd-analyze", "systemd")
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", unit).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("systemd-analyze verify: %v\n%s", err, out)
		}
	})
	t.Run("the unit may not do much", func(t *testing.T) {
		need.Command(t, "systemd-analyze", "systemd")
		out := run(t, nil, "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold="+mostExposed, unit)
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		t.Log(lines[len(lines)-1])
	})
	t.Run("the capabilities are enough", func(t *testing.T) {
		need.Root(t)
		need.Command(t, "setpriv", "util-linux")
		set := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindSubmatch(text)
		if set == nil {
			t.Fatal("they are not restricted")
		}
		bounds := "-all"
		for name := range strings.FieldsSeq(string(set[1])) {
			bounds += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
		}
		type finding struct{ What, Outcome, Detail string }
		findings := func(name string, args ...string) (all []finding) {
			cmd := exec.CommandContext(t.Context(), name, args...)
			cmd.Stderr = os.Stderr
			out, _ := cmd.Output() // it fails if anything is missing
			if err := json.Unmarshal(out, &all); err != nil {
				t.Fatalf("%s %v: %v\n%s", name, args, err, out)
			}
			for i := range all {
				all[i].Detail = "" // has figures
			}
			return all
		}
		free := findings(binary, "preflight", "-o", "json")
		bound := findings("setpriv", "--bounding-set="+bounds, "--inh-caps=-all", "--no-new-privs", binary, "preflight", "-o", "json")
		if !slices.Equal(free, bound) {
			t.Errorf("with %s:\n%v\nwith all:\n%v", bounds, bound, free)
		}
	})
}

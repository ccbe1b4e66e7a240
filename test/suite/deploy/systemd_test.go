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

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
)

// maxExposure is in tenths of what "systemd-analyze security" prints; without any of
// the unit's restrictions it is 96.
const maxExposure = "25"

func TestSystemd(t *testing.T) {
	dir := filepath.Join(build.RootForTest(t), "deploy", "systemd")
	binary := build.ProductForTest(t)
	text := string(must.Get(os.ReadFile(filepath.Join(dir, "nodeprobe.service")))(t))
	// setting returns the value of one of the unit's.
	setting := func(name string) string {
		match := regexp.MustCompile(`(?m)^` + name + `=(.+)$`).FindStringSubmatch(text)
		if match == nil {
			t.Fatalf("no %s in\n%s", name, text)
		}
		return match[1]
	}
	command := strings.Fields(setting("ExecStart"))
	run(t, nil, binary, "config", "check", filepath.Join(dir, "config.yaml"))
	run(t, nil, binary, append(command[1:], "--help")...)

	limit := resource.MustParse(setting("MemoryMax") + "i")
	if locked := lockedMemoryLimit(t); locked.Cmp(limit) >= 0 {
		t.Errorf("%s may be locked, MemoryMax is %s", &locked, &limit)
	}
	// systemd.resource-control(5): what protects has no effect beyond what the slice has.
	if slice := setting("Slice"); slice != "-.slice" {
		t.Errorf("MemoryMin in %s", slice)
	}

	// systemd requires that the program exists.
	unit := filepath.Join(t.TempDir(), "nodeprobe.service")
	must.OK(t, os.WriteFile(unit, []byte(strings.Replace(text, command[0], binary, 1)), 0o644))
	t.Run("systemd accepts the unit", func(t *testing.T) {
		need.Command(t, "systemd-analyze", "systemd")
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", unit).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("systemd-analyze verify: %v\n%s", err, out)
		}
		run(t, nil, "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold="+maxExposure, unit)
	})
	t.Run("the capabilities suffice", func(t *testing.T) {
		need.Root(t)
		need.Command(t, "setpriv", "util-linux")
		bounds := "-all"
		for name := range strings.FieldsSeq(setting("CapabilityBoundingSet")) {
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

package prometheus_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
)

var update = flag.Bool("update", false, "write prometheusrule.yaml from rules.yaml")

func deployed(t *testing.T, name string) string {
	t.Helper()
	return filepath.Join(build.RootForTest(t), "deploy", "prometheus", name)
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	return must.Get(os.ReadFile(file))(t)
}

func promtool(t *testing.T, stdin []byte, args ...string) (string, bool) {
	t.Helper()
	need.Command(t, "promtool", "prometheus")
	cmd := exec.CommandContext(t.Context(), "promtool", args...)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

func TestRules(t *testing.T) {
	for _, args := range [][]string{
		{"check", "rules", deployed(t, "rules/rules.yaml")},
		{"test", "rules", deployed(t, "rules/rules_test.yaml")},
	} {
		if out, ok := promtool(t, nil, args...); !ok {
			t.Errorf("promtool %s:\n%s", strings.Join(args, " "), out)
		}
	}
}

// Every alert fires in the tests of the rules, and says what it means and what to do.
func TestRulesAreTested(t *testing.T) {
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert               string
				Labels, Annotations map[string]string
			}
		}
	}
	must.OK(t, yaml.Unmarshal(read(t, deployed(t, "rules/rules.yaml")), &file))
	tests := string(read(t, deployed(t, "rules/rules_test.yaml")))
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if !strings.Contains(tests, `alertname="`+r.Alert+`"`) && !strings.Contains(tests, "alertname: "+r.Alert+"\n") {
				t.Errorf("%s: no test in which it fires", r.Alert)
			}
			if got := slices.Sorted(maps.Keys(r.Annotations)); !slices.Equal(got, []string{"description", "summary"}) {
				t.Errorf("%s: annotations %q", r.Alert, got)
			}
			if !slices.Contains([]string{"info", "warning", "critical"}, r.Labels["severity"]) {
				t.Errorf("%s: severity %q", r.Alert, r.Labels["severity"])
			}
		}
	}
}

// The operator's object has the same rules.
func TestPrometheusRule(t *testing.T) {
	plain, object := read(t, deployed(t, "rules/rules.yaml")), deployed(t, "rules/prometheusrule.yaml")
	if *update {
		head, _, ok := strings.Cut(string(read(t, object)), "\nspec:\n")
		_, groups, ok2 := strings.Cut(string(plain), "\ngroups:\n")
		if !ok || !ok2 {
			t.Fatal("no spec or no groups")
		}
		groups = regexp.MustCompile(`(?m)^(.)`).ReplaceAllString("groups:\n"+groups, "  $1")
		must.OK(t, os.WriteFile(object, []byte(head+"\nspec:\n"+groups), 0o644))
	}
	var rules any
	var rule struct {
		APIVersion, Kind string
		Metadata         map[string]string
		Spec             any
	}
	must.OK(t, yaml.Unmarshal(plain, &rules))
	must.OK(t, yaml.UnmarshalStrict(read(t, object), &rule))
	if diff := cmp.Diff(rules, rule.Spec); diff != "" {
		t.Errorf("prometheusrule.yaml differs from rules.yaml; -update writes it (-rules +object):\n%s", diff)
	}
	if rule.APIVersion != "monitoring.coreos.com/v1" || rule.Kind != "PrometheusRule" {
		t.Errorf("%s %s", rule.APIVersion, rule.Kind)
	}
}

// panel is what is of interest in a panel of a dashboard.
type panel struct {
	ID          int
	Type, Title string
	GridPos     struct{ H, W, X, Y int }
	Datasource  struct{ UID string }
	Targets     []struct{ RefID, Expr string }
}

func dashboard(t *testing.T) []panel {
	t.Helper()
	var d struct{ Panels []panel }
	must.OK(t, json.Unmarshal(read(t, deployed(t, "dashboard.json")), &d))
	return d.Panels
}

// No two panels overlap or share an ID, and each asks the data source that was
// chosen.
func TestDashboard(t *testing.T) {
	panels := dashboard(t)
	if len(panels) == 0 {
		t.Fatal("no panels")
	}
	taken := map[[2]int]string{}
	ids := map[int]bool{}
	for _, p := range panels {
		if ids[p.ID] {
			t.Errorf("%s: ID %d is another's", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%s: is wider than the page", p.Title)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if taken[at] != "" {
					t.Fatalf("%s overlaps %s", p.Title, taken[at])
				}
				taken[at] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
			t.Errorf("%s: %d queries of %s", p.Title, len(p.Targets), p.Datasource.UID)
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if refs[target.RefID] {
				t.Errorf("%s: two queries %s", p.Title, target.RefID)
			}
			refs[target.RefID] = true
		}
	}
}

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

var update = flag.Bool("update", false, "write prometheusrule.yaml from rules.yaml, metrics.md from what is scraped")

// deployed returns the path of a file in deploy/prometheus and its contents.
func deployed(t *testing.T, name string) (path string, text []byte) {
	t.Helper()
	path = filepath.Join(build.RootForTest(t), "deploy", "prometheus", name)
	return path, must.Get(os.ReadFile(path))(t)
}

// promtool fails the test with what it prints if promtool refuses its input.
func promtool(t *testing.T, stdin []byte, args ...string) {
	t.Helper()
	need.Command(t, "promtool", "prometheus")
	cmd := exec.CommandContext(t.Context(), "promtool", args...)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	// "check metrics" prints nothing unless there is something to complain about.
	if err != nil || stdin != nil && len(out) > 0 {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// promtool accepts the rules and their tests. Every alert fires in these, and has
// text about what it means and what to do. The operator's object has the same rules.
func TestRules(t *testing.T) {
	plainFile, plain := deployed(t, "rules/rules.yaml")
	testsFile, tests := deployed(t, "rules/rules_test.yaml")
	objectFile, object := deployed(t, "rules/prometheusrule.yaml")
	promtool(t, nil, "check", "rules", plainFile)
	promtool(t, nil, "test", "rules", testsFile)
	if *update {
		head, _, ok := strings.Cut(string(object), "\nspec:\n")
		_, groups, ok2 := strings.Cut(string(plain), "\ngroups:\n")
		if !ok || !ok2 {
			t.Fatal("no spec or no groups")
		}
		groups = regexp.MustCompile(`(?m)^(.)`).ReplaceAllString("groups:\n"+groups, "  $1")
		object = []byte(head + "\nspec:\n" + groups)
		must.OK(t, os.WriteFile(objectFile, object, 0o644))
	}
	var all any
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert               string
				Labels, Annotations map[string]string
			}
		}
	}
	must.OK(t, yaml.Unmarshal(plain, &all))
	must.OK(t, yaml.Unmarshal(plain, &rules))
	var rule struct {
		APIVersion, Kind string
		Metadata         map[string]string
		Spec             any
	}
	must.OK(t, yaml.UnmarshalStrict(object, &rule))
	if diff := cmp.Diff(all, rule.Spec); diff != "" {
		t.Errorf("prometheusrule.yaml differs from rules.yaml; -update writes it (-rules +object):\n%s", diff)
	}
	if rule.APIVersion != "monitoring.coreos.com/v1" || rule.Kind != "PrometheusRule" {
		t.Errorf("%s %s", rule.APIVersion, rule.Kind)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if !bytes.Contains(tests, []byte(`alertname="`+r.Alert+`"`)) && !bytes.Contains(tests, []byte("alertname: "+r.Alert+"\n")) {
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
	_, text := deployed(t, "dashboard.json")
	must.OK(t, json.Unmarshal(text, &d))
	return d.Panels
}

// No two panels overlap or share an ID, and each queries the data source that was
// chosen.
func TestDashboard(t *testing.T) {
	taken, ids := map[[2]int]string{}, map[int]string{}
	for _, p := range dashboard(t) {
		if ids[p.ID] != "" {
			t.Errorf("%s and %s have the same ID", p.Title, ids[p.ID])
		}
		ids[p.ID] = p.Title
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%s: wider than the page", p.Title)
		}
		for cell := range p.GridPos.W * p.GridPos.H {
			at := [2]int{p.GridPos.X + cell%p.GridPos.W, p.GridPos.Y + cell/p.GridPos.W}
			if taken[at] != "" {
				t.Fatalf("%s overlaps %s", p.Title, taken[at])
			}
			taken[at] = p.Title
		}
		if p.Type != "row" && (len(p.Targets) == 0 || p.Datasource.UID != "${datasource}") {
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

package oracle

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/kubelet"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

const configDir = "../../../cmd/nodeprobe/internal/config"

// What nodeprobe thinks that a kubelet makes of its configuration is what a
// kubelet makes of it: the fixtures' kubelet.json, against the kubelet itself.
func TestKubeletConfig(t *testing.T) {
	program := kubelet.Build(t)
	fixtures, err := filepath.Glob(filepath.Join(configDir, "testdata/kubelet/*/kubelet.json"))
	if err != nil || len(fixtures) < 5 {
		t.Fatalf("fixtures %v, error %v", fixtures, err)
	}
	for _, fixture := range fixtures {
		dir := filepath.Dir(fixture)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			data := must.Get(os.ReadFile(fixture))(t)
			var thought map[string]any
			must.OK(t, json.Unmarshal(data, &thought))
			actual := kubeletConfig(t, program, dir)
			for field, want := range thought {
				got, known := lookUp(actual, field)
				if !known {
					t.Errorf("%s: a kubelet has no such field", field)
				}
				if !reflect.DeepEqual(plain(got), plain(want)) {
					t.Errorf("%s: a kubelet makes %v of it, not %v", field, got, want)
				}
			}
		})
	}
}

// nodeprobe knows the fields that a kubelet has, and no others.
func TestKubeletFields(t *testing.T) {
	program := kubelet.Build(t)
	source := must.Get(os.ReadFile(filepath.Join(configDir, "kubeletfields.go")))(t)
	_, list, _ := strings.Cut(string(source), "const kubeletFields = `")
	list, _, _ = strings.Cut(list, "`")
	ours := strings.Fields(list)
	theirs := kubeletConfig(t, program, filepath.Join(configDir, "testdata/kubelet/kubeadm"))
	for _, field := range ours {
		if _, known := lookUp(theirs, field); !known {
			t.Errorf("%s: a kubelet has no such field", field)
		}
	}
	for field := range theirs {
		if !slices.ContainsFunc(ours, func(name string) bool { return strings.EqualFold(goName(name), field) }) {
			t.Errorf("%s is missing", field)
		}
	}
}

// configLog is where a kubelet logs its configuration, by the names of Go fields.
var configLog = regexp.MustCompile(`(?s)"KubeletConfiguration" configuration=<\n(.*?)\n >`)

// kubeletConfig returns what a kubelet makes of the files in a folder. Without
// its kubeconfig it goes no further than to log that.
func kubeletConfig(t *testing.T, program, dir string) map[string]any {
	t.Helper()
	temp := t.TempDir()
	args := []string{
		"--v=5", "--fail-cgroupv1=false", "--root-dir=" + temp, "--cert-dir=" + temp,
		"--kubeconfig=" + filepath.Join(temp, "there is none"),
	}
	for pattern, flag := range map[string]string{"config.*": "--config=", "conf.d": "--config-dir="} {
		if found, _ := filepath.Glob(filepath.Join(dir, pattern)); len(found) > 0 {
			args = append(args, flag+found[0])
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	output, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	logged := configLog.FindSubmatch(output)
	if logged == nil {
		t.Fatalf("no configuration in the kubelet's log, error %v:\n%s", err, output)
	}
	var fields map[string]any
	must.OK(t, json.Unmarshal(logged[1], &fields))
	return fields
}

// lookUp finds a field of a file in what was logged.
func lookUp(logged map[string]any, field string) (value any, known bool) {
	for name, value := range logged {
		if strings.EqualFold(name, goName(field)) {
			return value, true
		}
	}
	return nil, false
}

// goName is the name of the field in Go, but for the case of its letters.
func goName(field string) string {
	if field == "resolvConf" {
		return "ResolverConfig"
	}
	return field
}

// plain makes what is empty the same, and forgets the case of names.
func plain(value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, element := range v {
			if e := plain(element); e != nil {
				out[strings.ToLower(key)] = e
			}
		}
		if len(out) > 0 {
			return out
		}
		return nil
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = plain(v[i])
		}
		if len(out) > 0 {
			return out
		}
		return nil
	case string:
		if v == "" {
			return nil
		}
	}
	return value
}

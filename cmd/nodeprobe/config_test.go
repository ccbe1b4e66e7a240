package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// parseConfig is loadConfig of a file's content, without a kubelet's.
func parseConfig(path string, data []byte, settings ...setting) (config, *policy, error) {
	base := kubeletConfig{config: defaults()}
	return base.parse(path, data, settings)
}

// What "config default" prints is a configuration, and the default one.
func TestConfigDefault(t *testing.T) {
	got := nodeprobe(t, "config", "default")
	if got.code != 0 || got.stderr != "" {
		t.Fatalf("got %+v", got)
	}
	c, p, err := parseConfig("default.yaml", []byte(got.stdout))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(defaults(), c); diff != "" {
		t.Errorf("(-defaults +parsed):\n%s", diff)
	}
	if len(p.thresholds) != 7 || len(p.notes) != 0 {
		t.Errorf("%d thresholds, notes %v", len(p.thresholds), p.notes)
	}
	// The YAML library reads the same into the same: our decoder is no dialect.
	var library config
	if err := yaml.Unmarshal(defaultConfig, &library); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(library, c); diff != "" {
		t.Errorf("(-library +ours):\n%s", diff)
	}
}

// default.yaml is the reference: every field of the struct is in it, nothing
// else is, and each block of fields has a comment above it.
func TestConfigDefaultIsComplete(t *testing.T) {
	var document yaml.Node
	if err := yaml.Unmarshal(defaultConfig, &document); err != nil {
		t.Fatal(err)
	}
	var inFile []string
	for i := 0; i < len(document.Content[0].Content); i += 2 {
		inFile = append(inFile, document.Content[0].Content[i].Value)
	}
	var inStruct []string
	for f := range reflect.TypeFor[config]().Fields() {
		inStruct = append(inStruct, f.Tag.Get("yaml"))
	}
	if diff := cmp.Diff(inStruct, inFile); diff != "" {
		t.Errorf("(-struct +default.yaml):\n%s", diff)
	}
	for block := range strings.SplitSeq(string(defaultConfig), "\n\n") {
		first, _, _ := strings.Cut(block, "\n")
		if !strings.HasPrefix(first, "# ") {
			t.Errorf("no comment above:\n%s", block)
		}
		if strings.HasPrefix(first, "# ---") && strings.Contains(block, "\n") {
			t.Errorf("a heading is no comment:\n%s", block)
		}
	}
	for comment := range strings.Lines(string(defaultConfig)) {
		if strings.HasPrefix(comment, "#") && len(comment) > 81 {
			t.Errorf("a long line: %s", comment)
		}
	}
}

// Fields that are left out, or left empty, keep their defaults; maps are merged.
func TestConfigMerge(t *testing.T) {
	c, _, err := parseConfig("f", []byte(header+`
evictionHard:
  memory.available: 1Gi
  "pid.available": 0%
evictionSoft: # all of it commented out
nodeStatusUpdateFrequency:
imageDirectories: []
nodeLabels: {node-role.kubernetes.io/edge: , rack: 7, version: 1.10}
sampleInterval: 500ms
maxPods: 0110
registerNode: false
registerWithTaints:
- {key: a, effect: NoSchedule}
- {key: a, effect: NoExecute, value: b}
systemReserved: &reserved {cpu: 100m}
kubeReserved: *reserved
`))
	if err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.EvictionHard["memory.available"] = "1Gi"
	want.EvictionHard["pid.available"] = "0%"
	want.ImageDirectories = []string{}
	want.NodeLabels = map[string]string{"node-role.kubernetes.io/edge": "", "rack": "7", "version": "1.10"}
	want.SampleInterval = 500 * time.Millisecond
	want.RegisterNode = false
	want.RegisterWithTaints = []taint{{Key: "a", Effect: "NoSchedule"}, {Key: "a", Effect: "NoExecute", Value: "b"}}
	want.SystemReserved = map[string]string{"cpu": "100m"}
	want.KubeReserved = map[string]string{"cpu": "100m"}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An empty evictionHard is one whose keys are all commented out. It must not
// take every threshold away.
func TestConfigEmptyMapKeepsThresholds(t *testing.T) {
	for _, empty := range []string{"", "~", "null", "{}", "\n  # memory.available: 1Gi"} {
		_, p, err := parseConfig("f", []byte(header+"evictionHard: "+empty+"\n"))
		if err != nil || len(p.thresholds) != 7 {
			t.Errorf("evictionHard: %s: %v, error %v", empty, p, err)
		}
	}
}

func TestConfigCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(header+`
evictionHard: {containerfs.available: 5%}
evictionSoft: {memory.available: 1Gi, containerfs.inodesFree: 5%}
evictionSoftGracePeriod: {memory.available: 0s, containerfs.inodesFree: 1m}
`), 0o644); err != nil {
		t.Fatal(err)
	}
	got := nodeprobe(t, "config", "check", path)
	ignored := "ignored, as by the kubelet: the thresholds of nodefs and imagefs apply instead\n"
	want := outcome{stdout: path + ": note: evictionHard[containerfs.available]: " + ignored +
		path + ": note: evictionSoft[containerfs.inodesFree]: " + ignored +
		path + ": note: evictionSoft[memory.available]: a soft threshold without a grace period is a hard one\n" +
		path + ": ok\n"}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(outcome{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The name comes from the flag, else the file, else NODE_NAME, else the machine.
func TestNodeName(t *testing.T) {
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	flag := setting{"hostname-override", "nodeName", "From-Flag", func(c *config) *string { return &c.NodeName }}
	for _, test := range []struct {
		name, env, file string
		settings        []setting
		want            string
	}{
		{"flag", "from-env", "nodeName: from-file\n", []setting{flag}, "from-flag"},
		{"file", "from-env", "nodeName: from-file\n", nil, "from-file"},
		{"environment", " From-Env ", "", nil, "from-env"},
		{"hostname", "", "", nil, strings.ToLower(hostname)},
		{"spaces around it", "", "nodeName: \" Name.Of-Node \"\n", nil, "name.of-node"},
		{"flag mends what is wrong below it", "wrong_env", "nodeName: wrong_file\n", []setting{flag}, "from-flag"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("NODE_NAME", test.env)
			_, p, err := parseConfig("f", []byte(header+test.file), test.settings...)
			if err != nil || p.nodeName != test.want {
				t.Errorf("got %+v, error %v", p, err)
			}
		})
	}
	t.Run("whose fault", func(t *testing.T) {
		t.Setenv("NODE_NAME", "wrong_env")
		for path, load := range map[string]func() error{
			"f":             func() error { _, _, err := parseConfig("f", []byte(header)); return err },
			"configuration": func() error { _, _, err := loadConfig("", kubeletFiles{}); return err },
		} {
			want := path + `: nodeName: environment variable NODE_NAME: "wrong_env" is not the name of a node: `
			if err := load(); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got %v, want %s...", err, want)
			}
		}
	})
}

// Every flag of run that overrides a field does so, with "" too, and is named
// where its value is wrong.
func TestOverrides(t *testing.T) {
	file := []byte(header + "mode: own\nnodeName: a\nkubeconfig: /a\nwebListenAddress: 1.2.3.4:5\nwebConfigFile: /w\nwebHealthListenAddress: 1.2.3.4:6\nlogLevel: debug\nlogFormat: json\n")
	for _, o := range overrides() {
		t.Run(o.flag, func(t *testing.T) {
			value := map[string]string{
				"mode": "observe", "nodeName": "b", "kubeconfig": "", "webListenAddress": "", "webConfigFile": "", "webHealthListenAddress": "", "logLevel": "warn", "logFormat": "text",
			}[o.field]
			got, _, err := parseConfig("f", file, setting{o.flag, o.field, value, o.target})
			if err != nil {
				t.Fatal(err)
			}
			want, _, _ := parseConfig("f", file)
			*o.target(&want) = value
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			field, _ := reflect.TypeFor[config]().FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, o.field) })
			if !strings.Contains(o.usage, field.Tag.Get("yaml")) {
				t.Errorf("usage %q does not name the field %s", o.usage, o.field)
			}
			if o.field == "kubeconfig" || o.field == "webConfigFile" {
				return // any text is a path
			}
			bad := nodeprobe(t, "run", "--"+o.flag+"=no_such:thing")
			if want := regexp.MustCompile(`^nodeprobe: --` + regexp.QuoteMeta(o.flag) + `: ` + o.field + `: [^\n]*no_such:thing[^\n]*\n$`); bad.code != exitUsage || !want.MatchString(bad.stderr) {
				t.Errorf("got %+v", bad)
			}
		})
	}
}

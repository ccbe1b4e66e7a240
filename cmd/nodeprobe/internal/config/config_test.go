package config

import (
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v3"
	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe"
)

// The environment that tests run in must not decide how they end.
func TestMain(m *testing.M) {
	os.Unsetenv("NODE_NAME")
	m.Run()
}

// parse is Load of a file's content, without a kubelet's.
func parse(path, data string, settings ...Setting) (*Loaded, error) {
	o := &overlay{values: defaults()}
	return o.parse(path, []byte(data), settings)
}

func mustParse(t *testing.T, fields string, settings ...Setting) *Loaded {
	t.Helper()
	loaded, err := parse("f", header+fields, settings...)
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

// everything compares what cmp cannot see by itself.
var everything = cmp.Options{cmp.Exporter(func(reflect.Type) bool { return true }), cmpopts.EquateEmpty()}

// default.yaml is a configuration, and the same as no file at all.
func TestDefault(t *testing.T) {
	read, err := parse("default.yaml", Default())
	if err != nil {
		t.Fatal(err)
	}
	none, err := Load(Files{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(none, read, everything); diff != "" {
		t.Errorf("(-no file +default.yaml):\n%s", diff)
	}
	if len(read.Agent.Thresholds) != 7 || len(read.Remarks) != 0 {
		t.Errorf("%d thresholds, remarks %v", len(read.Agent.Thresholds), read.Remarks)
	}
	// The YAML library reads the same into the same: our decoder is no dialect.
	var library file
	if err := yaml.Unmarshal([]byte(Default()), &library); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(library, read.file); diff != "" {
		t.Errorf("(-library +ours):\n%s", diff)
	}
}

// The defaults of the file are those of the library, in every field.
func TestDefaultIsTheLibrarys(t *testing.T) {
	t.Setenv("NODE_NAME", "n")
	loaded, err := Load(Files{})
	if err != nil {
		t.Fatal(err)
	}
	want := nodeprobe.DefaultConfig()
	want.NodeName = "n"
	got, wanted := reflect.ValueOf(loaded.Agent), reflect.ValueOf(want)
	for i := range got.NumField() {
		if diff := cmp.Diff(wanted.Field(i).Interface(), got.Field(i).Interface(), everything); diff != "" {
			t.Errorf("%s (-library +file):\n%s", got.Type().Field(i).Name, diff)
		}
	}
}

// Every field of the agent either comes from the file, under a name that an error can
// use, or from the program that makes the agent.
func TestFieldNames(t *testing.T) {
	program := map[string]bool{
		"Procfs": true, "Sysfs": true, "Rootfs": true, "API": true, "APIOrigin": true, "Version": true,
		"Setters": true, "NetworkErrors": true, "StorageErrors": true, "SoftRequirements": true,
		"OnSample": true, "OnReconnect": true, "Logger": true, "Registerer": true,
	}
	for field := range reflect.TypeFor[nodeprobe.Config]().Fields() {
		named := fieldNamed(reflect.ValueOf(file{}), fileField(field.Name)).IsValid()
		if named == program[field.Name] {
			t.Errorf("%s: in the file %t, from the program %t", field.Name, named, program[field.Name])
		}
	}
	for name := range goFields {
		if _, ok := reflect.TypeFor[nodeprobe.Config]().FieldByName(name); !ok {
			t.Errorf("a Config has no field %s", name)
		}
	}
}

// default.yaml is the reference: every field of the struct is in it, nothing else is,
// and each block of fields has a comment above it.
func TestDefaultIsComplete(t *testing.T) {
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(Default()), &document); err != nil {
		t.Fatal(err)
	}
	var inFile []string
	for i := 0; i < len(document.Content[0].Content); i += 2 {
		inFile = append(inFile, document.Content[0].Content[i].Value)
	}
	var inStruct []string
	for f := range reflect.TypeFor[file]().Fields() {
		inStruct = append(inStruct, f.Tag.Get("yaml"))
	}
	if diff := cmp.Diff(inStruct, inFile); diff != "" {
		t.Errorf("(-struct +default.yaml):\n%s", diff)
	}
	for block := range strings.SplitSeq(Default(), "\n\n") {
		first, _, _ := strings.Cut(block, "\n")
		if !strings.HasPrefix(first, "# ") {
			t.Errorf("no comment above:\n%s", block)
		}
		if strings.HasPrefix(first, "# ---") && strings.Contains(block, "\n") {
			t.Errorf("a heading is no comment:\n%s", block)
		}
	}
	for comment := range strings.Lines(Default()) {
		if strings.HasPrefix(comment, "#") && len(comment) > 81 {
			t.Errorf("a long line: %s", comment)
		}
	}
}

// Fields that are left out, or left empty, keep their defaults; maps are merged.
func TestMergeWithDefaults(t *testing.T) {
	got := mustParse(t, `
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
`)
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
	if diff := cmp.Diff(want, got.file); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What a file says is what the agent and the command get, in every field that is not
// copied alone.
func TestResolve(t *testing.T) {
	got := mustParse(t, `
mode: own
bpf: "off"
nodeName: N1
evictionHard: {memory.available: 1Gi}
evictionSoft: {memory.available: 2Gi}
evictionSoftGracePeriod: {memory.available: 0s}
enforceNodeAllocatable: [none]
fieldManager: edge-agent
nodeLeaseDurationSeconds: 20
nodeAnnotations: {Example.com/rack: "any text: it may be long"}
registerWithTaints: [{key: a, value: b, effect: NoExecute}]
volumeLimits: {disk.example.com: 0, Other.example.com: 12, attachable-volumes-aws-ebs: "39"}
nodeIP: 192.0.2.1, 2001:db8::1
cloudProvider: external
systemReserved: {cpu: 100m, memory: 1Gi}
reservedSystemCPUs: 0,2-3
nodeStatusMaxImages: -1
exitMessage: upgrading
conditions:
  example.com/Off: {when: []}
  example.com/A: {when: [PIDPressure, nodefs.readonly], for: 1s, hold: 2s, reason: X, okReason: Y}
  nodeprobe.dev/PIDPressure: {when: []}
conditionsOnExit: keep
webListenAddress: :1
webHealthListenAddress: :2
webConfigFile: /w
kubeconfig: /k
impersonateNode: true
lockedMemoryLimit: 64Mi
oomScoreAdj: -500
dropCapabilities: false
logLevel: debug
logFormat: json
`)
	a := got.Agent
	for _, test := range []struct {
		name      string
		got, want any
	}{
		{"mode", a.Mode, nodeprobe.Own},
		{"bpf", a.DisableBPF, true},
		{"nodeName", a.NodeName, "n1"},
		{"evictionHard", a.EvictionReserved[0].String(), "memory.available<1Gi"},
		{"reserved", len(a.EvictionReserved), 6},
		{"thresholds", len(a.Thresholds), 7},
		{"fieldManager", a.FieldManager, "edge-agent"},
		{"nodeLeaseDurationSeconds", a.LeaseDuration, 20 * time.Second},
		{"nodeAnnotations", a.Annotations, map[string]string{"Example.com/rack": "any text: it may be long"}},
		{"registerWithTaints", a.Taints, []v1.Taint{{Key: "a", Value: "b", Effect: "NoExecute"}}},
		{"volumeLimits", a.VolumeLimits, map[v1.ResourceName]int64{
			"attachable-volumes-csi-disk.example.com": 0, "attachable-volumes-csi-Other.example.com": 12, "attachable-volumes-aws-ebs": 39,
		}},
		{"nodeIP", len(a.NodeIPs), 2},
		{"cloudProvider", a.ExternalCloudProvider, true},
		{"systemReserved", a.SystemReserved.Memory().String() + " " + a.SystemReserved.Cpu().String(), "1Gi 100m"},
		{"reservedSystemCPUs", a.ReservedCPUs.String(), "0,2-3"},
		{"nodeStatusMaxImages", a.MaxImages, -1},
		{"exitMessage", a.ExitMessage, "upgrading"},
		{"conditions", len(a.Conditions), 6},
		{"a condition", a.Conditions[0].Type + " " + a.Conditions[0].When[1].String(), "example.com/A nodefs.readonly"},
		{"conditionsOnExit", a.RemoveConditions, false},
		{"web", got.Web, Web{":1", ":2", "/w"}},
		{"kubeconfig", got.Kubeconfig, "/k"},
		{"impersonateNode", got.ImpersonateNode, true},
		{"lockedMemoryLimit", got.LockedMemoryLimit, int64(64 << 20)},
		{"oomScoreAdj", got.OOMScoreAdj, -500},
		{"dropCapabilities", got.DropCapabilities, false},
		{"logLevel", got.LogLevel, slog.LevelDebug},
		{"logFormat", got.LogFormat, "json"},
	} {
		if diff := cmp.Diff(test.want, test.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// What is locked is bounded by a quantity, or nothing is.
func TestLockedMemoryLimit(t *testing.T) {
	for text, want := range map[string]int64{
		"48Mi": 48 << 20, `"0"`: 0, "0Mi": 0, "16Mi": 16 << 20, "20000000": 2e7, "1e30": math.MaxInt64,
	} {
		if got := mustParse(t, "lockedMemoryLimit: "+text+"\n").LockedMemoryLimit; got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
}

// An empty evictionHard is one whose keys are all commented out. It must not drop every
// threshold.
func TestEmptyMapKeepsThresholds(t *testing.T) {
	for _, empty := range []string{"", "~", "null", "{}", "\n  # memory.available: 1Gi"} {
		loaded, err := parse("f", header+"evictionHard: "+empty+"\n")
		if err != nil || len(loaded.Agent.Thresholds) != 7 {
			t.Errorf("evictionHard: %s: %v, error %v", empty, loaded, err)
		}
	}
}

// What is valid and does not do what it seems to is noted, with its line.
func TestRemarks(t *testing.T) {
	got := mustParse(t, `
evictionHard: {containerfs.available: 5%}
evictionSoft: {memory.available: 1Gi, containerfs.inodesFree: 5%}
evictionSoftGracePeriod: {memory.available: 0s, containerfs.inodesFree: 1m}
lastWord: bye
`)
	const ignored = "ignored, as by the kubelet: the thresholds of nodefs and imagefs apply instead\n"
	want := "f:7: warning: lastWord: deprecated; use its new name, exitMessage\n" +
		"f:4: note: evictionHard[containerfs.available]: " + ignored +
		"f:5: note: evictionSoft[containerfs.inodesFree]: " + ignored +
		"f:5: note: evictionSoft[memory.available]: a soft threshold without a grace period is a hard one\n"
	if diff := cmp.Diff(want, printed(t, got.Remarks)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got.Agent.ExitMessage != "bye" {
		t.Errorf("exitMessage is %q", got.Agent.ExitMessage)
	}
	if warnings := got.Remarks.Warnings(); len(warnings) != 1 || warnings[0].String() != "f:7: lastWord: deprecated; use its new name, exitMessage" {
		t.Errorf("warnings %v", warnings)
	}
}

// The name comes from the flag, else the file, else NODE_NAME, else the machine.
func TestNodeName(t *testing.T) {
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	flag := Setting{"hostname-override", "nodeName", "From-Flag"}
	for _, test := range []struct {
		name, env, file string
		settings        []Setting
		want            string
	}{
		{"flag", "from-env", "nodeName: from-file\n", []Setting{flag}, "from-flag"},
		{"file", "from-env", "nodeName: from-file\n", nil, "from-file"},
		{"environment", " From-Env ", "", nil, "from-env"},
		{"hostname", "", "", nil, strings.ToLower(hostname)},
		{"spaces around it", "", "nodeName: \" Name.Of-Node \"\n", nil, "name.of-node"},
		{"flag mends what is wrong below it", "wrong_env", "nodeName: wrong_file\n", []Setting{flag}, "from-flag"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("NODE_NAME", test.env)
			if got := mustParse(t, test.file, test.settings...); got.Agent.NodeName != test.want {
				t.Errorf("got %q", got.Agent.NodeName)
			}
		})
	}
	t.Run("whose fault", func(t *testing.T) {
		t.Setenv("NODE_NAME", "wrong_env")
		for path, load := range map[string]func() error{
			"f":             func() error { _, err := parse("f", header); return err },
			"configuration": func() error { _, err := Load(Files{}); return err },
		} {
			want := path + `: nodeName: environment variable NODE_NAME: "wrong_env" is not the name of a node: use lower-case letters, digits, '-' and '.', such as wrong-env`
			if err := load(); err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
		}
	})
}

// A setting wins over the file, with "" too, and its flag is named where its value is
// wrong.
func TestSettings(t *testing.T) {
	const fields = "mode: own\nnodeName: a\nkubeconfig: /a\nwebListenAddress: 1.2.3.4:5\nwebHealthListenAddress: :6\nwebConfigFile: /w\nlogLevel: debug\nlogFormat: json\n"
	for field, value := range map[string]string{
		"mode": "observe", "nodeName": "b", "kubeconfig": "", "webListenAddress": "", "webHealthListenAddress": "",
		"webConfigFile": "", "logLevel": "warn", "logFormat": "text",
	} {
		t.Run(field, func(t *testing.T) {
			got := mustParse(t, fields, Setting{"flag", field, value})
			if got.Fields()[field] != value {
				t.Errorf("%q, want %q", got.Fields()[field], value)
			}
			if field == "kubeconfig" || field == "webConfigFile" {
				return // any text is a path
			}
			_, err := parse("f", header+fields, Setting{"flag", field, "no_such:thing"})
			if err == nil || !strings.HasPrefix(err.Error(), "--flag: "+field+": ") || !strings.Contains(err.Error(), "no_such:thing") || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v", err)
			}
		})
	}
	for _, field := range []string{"maxPods", "modus"} {
		if _, err := parse("f", header, Setting{"flag", field, "1"}); err == nil || err.Error() != "--flag: "+field+": no field of this name is a text" {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// The state of the files changes with any of them, and with what a link leads to.
func TestState(t *testing.T) {
	dir := t.TempDir()
	files := Files{Own: filepath.Join(dir, "own"), KubeletFile: filepath.Join(dir, "kubelet"), KubeletDir: filepath.Join(dir, "d")}
	written := time.Now().Add(-time.Hour).Truncate(time.Second)
	seen := map[string]string{}
	step := func(name string, change func() error) {
		t.Helper()
		if err := change(); err != nil {
			t.Fatal(err)
		}
		state, _ := files.State()
		if before, same := seen[state]; same {
			t.Errorf("%s: the same state as %s", name, before)
		}
		seen[state] = name
		if again, _ := files.State(); again != state {
			t.Errorf("%s: another state, and nothing has changed", name)
		}
	}
	put := func(path, text string) func() error {
		return func() error {
			write(t, path, text)
			return os.Chtimes(path, written, written)
		}
	}
	step("nothing", func() error { return nil })
	step("own", put(files.Own, "a"))
	step("kubelet", put(files.KubeletFile, "a"))
	step("drop-in", put(filepath.Join(files.KubeletDir, "a.conf"), "a"))
	if _, latest := files.State(); latest.Before(written) {
		t.Errorf("latest %v, written %v", latest, written)
	}
	step("longer", put(files.Own, "ab"))
	other := filepath.Join(dir, "other")
	step("link", func() error {
		if err := put(other, "ab")(); err != nil {
			return err
		}
		if err := os.Remove(files.Own); err != nil {
			return err
		}
		return os.Symlink(other, files.Own)
	})
}

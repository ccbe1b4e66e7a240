package config

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const header = "apiVersion: nodeprobe.dev/v1alpha1\nkind: NodeProbeConfiguration\n"

const kubeletHeader = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// kubeletFixture returns the files in a folder of testdata/kubelet.
func kubeletFixture(t *testing.T, dir string) Files {
	t.Helper()
	var files Files
	for _, name := range []string{"config.yaml", "config.json"} {
		if path := filepath.Join(dir, name); exists(path) {
			files.KubeletFile = path
		}
	}
	if path := filepath.Join(dir, "conf.d"); exists(path) {
		files.KubeletDir = path
	}
	if files.String() == "" {
		t.Fatalf("%s has no configuration", dir)
	}
	return files
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// kubeletJSON shows the fields that are taken as a kubelet would write them.
func kubeletJSON(t *testing.T, o *overlay) string {
	t.Helper()
	f := o.values
	f.EvictionHard, f.NodeStatusReportFrequency = o.theirs.hard, o.theirs.report
	fields := map[string]any{}
	for field, value := range reflect.ValueOf(f).Fields() {
		name := field.Tag.Get("yaml")
		if !isKubeletField(name) {
			continue
		}
		switch v := value.Interface().(type) {
		case time.Duration:
			fields[name] = v.String()
		case []taint:
			taints := []map[string]string{}
			for _, one := range v {
				taints = append(taints, map[string]string{"key": one.Key, "value": one.Value, "effect": one.Effect})
			}
			fields[name] = taints
		default:
			fields[name] = v
		}
	}
	data, err := json.MarshalIndent(fields, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data) + "\n"
}

// kubelet.json is what a kubelet makes of the files, which test/suite/oracle compares with
// a real kubelet; check.txt is what we remark on the differences.
func TestKubeletFiles(t *testing.T) {
	dirs, err := filepath.Glob("testdata/kubelet/*")
	if err != nil || len(dirs) < 5 {
		t.Fatalf("fixtures %v, error %v", dirs, err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			files := kubeletFixture(t, dir)
			o, err := readKubelet(files.KubeletFile, files.KubeletDir)
			if err != nil || len(o.problems) > 0 {
				t.Fatalf("error %v, problems %v", err, o.problems)
			}
			golden(t, filepath.Join(dir, "kubelet.json"), kubeletJSON(t, o))
			loaded, err := Load(files)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join(dir, "check.txt"), printed(t, loaded.Remarks))
		})
	}
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		write(t, path, got)
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s, unless -update is right (-want +got):\n%s", path, diff)
	}
}

func printed(t *testing.T, remarks Remarks) string {
	t.Helper()
	var b strings.Builder
	if err := remarks.Print(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// hardWith returns the default thresholds, with others over them.
func hardWith(others map[string]string) map[string]string {
	hard := defaults().EvictionHard
	maps.Copy(hard, others)
	return hard
}

// What nodeprobe itself makes of a kubelet's files.
func TestKubeletDefaults(t *testing.T) {
	for _, test := range []struct {
		name string
		want func(*file)
	}{
		{"kubeadm", func(c *file) { // zero means unset there
			c.ContainerRuntimeEndpoint = "unix:///var/run/containerd/containerd.sock"
		}},
		{"k3s", func(c *file) {
			c.EvictionHard = hardWith(map[string]string{"imagefs.available": "5%", "nodefs.available": "5%"})
			c.EvictionMinimumReclaim = map[string]string{"imagefs.available": "10%", "nodefs.available": "10%"}
			c.ShutdownGracePeriod = time.Minute
			c.ContainerRuntimeEndpoint = "unix:///run/k3s/containerd/containerd.sock"
		}},
		{"minikube", func(c *file) {
			c.EvictionHard = hardWith(map[string]string{"nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"})
		}},
		{"eks", func(c *file) {
			c.KubeReserved = map[string]string{"cpu": "70m", "ephemeral-storage": "1Gi", "memory": "442Mi"}
			c.MaxPods, c.PodsPerCore, c.Port = 29, 20, 10260
			c.ProviderID = "aws:///eu-west-1a/i-0123456789abcdef0"
			c.RegisterWithTaints = []taint{{Key: "node.example.com/startup", Value: "wait", Effect: "NoExecute"}}
			c.RegisterNode, c.EnableControllerAttachDetach, c.LocalStorageCapacityIsolation = false, false, false
		}},
		{"traps", func(c *file) {
			c.NodeStatusUpdateFrequency = 20 * time.Second // the report stays at 5m
			c.EvictionHard = hardWith(map[string]string{"memory.available": "500Mi"})
			c.EvictionSoft = map[string]string{"memory.available": "1Gi"}
			c.EvictionSoftGracePeriod = map[string]string{"memory.available": "2m"}
			c.ReservedSystemCPUs = "0-1"
		}},
		{"none", func(c *file) {
			c.EvictionHard = map[string]string{}
			c.NodeLeaseDurationSeconds = 120
			c.OOMScoreAdj = 0 // is not unset
		}},
		{"back", func(*file) {}},    // null in a drop-in
		{"deleted", func(*file) {}}, // by another drop-in than the one that set it
		{"literal", func(c *file) {
			c.EvictionHard = map[string]string{"memory.available": "500Mi"}
			c.EvictionPressureTransitionPeriod = 30 * time.Second
		}},
		{"merged", func(c *file) {
			c.EvictionHard = hardWith(map[string]string{"memory.available": "500Mi"})
			c.SystemReserved = map[string]string{"cpu": "200m", "memory": "1Gi", "pid": "1000"}
		}},
		{"dropins", func(c *file) {
			c.EvictionHard = hardWith(map[string]string{"memory.available": "300Mi"})
			c.NodeStatusUpdateFrequency = 30 * time.Second
			c.SystemReserved = map[string]string{"cpu": "100m", "memory": "512Mi"}
			c.MaxPods, c.NodeStatusMaxImages = 70, 0
			c.RegisterWithTaints = []taint{{Key: "c", Value: "d", Effect: "NoExecute"}}
		}},
		{"nulls", func(c *file) {
			c.NodeStatusUpdateFrequency = 20 * time.Second
			c.EvictionHard = hardWith(map[string]string{"memory.available": "500Mi", "nodefs.available": "2Gi"})
			delete(c.EvictionHard, "imagefs.available")
			c.SystemReserved = map[string]string{"cpu": "100m"}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Load(kubeletFixture(t, filepath.Join("testdata/kubelet", test.name)))
			if err != nil {
				t.Fatal(err)
			}
			want := defaults()
			want.ContainerRuntimeEndpoint = kubeletRuntime
			test.want(&want)
			if diff := cmp.Diff(want, got.file); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Our own file wins over a kubelet's, and the flags over both. What our own file decides
// is not remarked on.
func TestKubeletBelowOurs(t *testing.T) {
	dir := t.TempDir()
	own, theirs := filepath.Join(dir, "own.yaml"), filepath.Join(dir, "kubelet.yaml")
	write(t, theirs, kubeletHeader+`
maxPods: 50
podsPerCore: 10
nodeStatusUpdateFrequency: 20s
evictionHard: {memory.available: 500Mi, nodefs.available: 1Gi}
evictionPressureTransitionPeriod: 2m
`)
	write(t, own, header+`
maxPods: 60
mode: own
nodeStatusReportFrequency: 5m
evictionPressureTransitionPeriod: 0s
evictionHard: {memory.available: 700Mi, pid.available: 1000, imagefs.available: 0%}
`)
	got, err := Load(Files{Own: own, KubeletFile: theirs, Settings: []Setting{{"mode", "mode", "observe"}}})
	if err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.ContainerRuntimeEndpoint = kubeletRuntime
	want.MaxPods, want.PodsPerCore = 60, 10
	want.NodeStatusUpdateFrequency = 20 * time.Second
	want.EvictionPressureTransitionPeriod = 0
	want.EvictionHard = hardWith(map[string]string{
		"memory.available": "700Mi", "nodefs.available": "1Gi", "pid.available": "1000", "imagefs.available": "0%",
	})
	if diff := cmp.Diff(want, got.file); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	wantRemarks := theirs + `:7: note: evictionHard: these defaults stay, where a kubelet would not have them: ` +
		`imagefs.inodesFree 5%, nodefs.inodesFree 5%; "0%" turns one off` + "\n"
	if diff := cmp.Diff(wantRemarks, printed(t, got.Remarks)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A kubelet reads YAML 1.1, which has more words for true and false.
func TestKubeletBooleans(t *testing.T) {
	for text, want := range map[string]bool{
		"true": true, "yes": true, "On": true, "YES": true, "false": false, "no": false, "Off": false, "NO": false, "y": true, "N": false,
	} {
		k := &overlay{}
		k.add("f", []byte(kubeletHeader+"registerNode: "+text+"\n"), false)
		k.decode()
		if len(k.problems) > 0 || k.values.RegisterNode != want {
			t.Errorf("%s: %t, problems %v", text, k.values.RegisterNode, k.problems)
		}
	}
	for _, text := range []string{`"yes"`, "oN", "1"} { // texts and numbers
		k := &overlay{}
		k.add("f", []byte(kubeletHeader+"registerNode: "+text+"\n"), false)
		if k.decode(); len(k.problems) != 1 {
			t.Errorf("%s: problems %v, want one", text, k.problems)
		}
	}
	if _, problems := decodeStrictly([]byte(header+"registerNode: yes\n"), &file{}); len(problems) != 1 {
		t.Errorf("in our own file: problems %v, want one", problems)
	}
}

// So it reads numbers: some would be others in our own file.
func TestKubeletNumbers(t *testing.T) {
	for text, want := range map[string]int64{"110": 110, "0110": 72, "0x6e": 110, "1_10": 110} {
		k := &overlay{}
		k.add("f", []byte(kubeletHeader+"maxPods: "+text+"\n"), false)
		k.decode()
		if len(k.problems) > 0 || k.values.MaxPods != want {
			t.Errorf("%s: %d, problems %v", text, k.values.MaxPods, k.problems)
		}
	}
}

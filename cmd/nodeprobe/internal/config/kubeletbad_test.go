package config

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe"
)

// Each problem names its file and line, whichever of the files that is.
func TestBadKubeletConfig(t *testing.T) {
	const main, dropIn, own = "kubelet.yaml", "conf.d/10.conf", "own.yaml"
	for _, test := range []struct {
		name  string
		files map[string]string
		want  []string // without the folder
	}{
		{"empty", map[string]string{main: ""}, []string{"kubelet.yaml:1: the file is empty; it needs apiVersion and kind"}},
		{"empty drop-in", map[string]string{dropIn: ""}, []string{"conf.d/10.conf:1: the file is empty; it needs apiVersion and kind"}},
		{"no apiVersion, no kind", map[string]string{main: "maxPods: 1\n", dropIn: "maxPods: 1\n"}, []string{
			`kubelet.yaml: apiVersion: "" is not "kubelet.config.k8s.io/v1beta1"`,
			`kubelet.yaml: kind: "" is not "KubeletConfiguration"`,
			`conf.d/10.conf: apiVersion: "" is not "kubelet.config.k8s.io/v1beta1"`,
			`conf.d/10.conf: kind: "" is not "KubeletConfiguration"`,
		}},
		{"our own", map[string]string{main: header + "maxPods: many\n"}, []string{ // and no more about it
			`kubelet.yaml:1: apiVersion: "nodeprobe.dev/v1alpha1" is not "kubelet.config.k8s.io/v1beta1"`,
			`kubelet.yaml:2: kind: "NodeProbeConfiguration" is not "KubeletConfiguration"`,
		}},
		{"a kubelet's for our own", map[string]string{main: kubeletHeader, own: kubeletHeader}, []string{
			`own.yaml:1: apiVersion: "kubelet.config.k8s.io/v1beta1" is not "nodeprobe.dev/v1alpha1"`,
			`own.yaml:2: kind: "KubeletConfiguration" is not "NodeProbeConfiguration"`,
		}},
		{"neither says what it is", map[string]string{main: "port: 1\n", own: "port: 1\n"}, []string{
			`kubelet.yaml: apiVersion: "" is not "kubelet.config.k8s.io/v1beta1"`,
			`kubelet.yaml: kind: "" is not "KubeletConfiguration"`,
			`own.yaml: apiVersion: "" is not "nodeprobe.dev/v1alpha1"`,
			`own.yaml: kind: "" is not "NodeProbeConfiguration"`,
		}},
		{"a list", map[string]string{main: "- a\n"}, []string{"kubelet.yaml:1: a list is not a mapping of fields to values"}},
		{"two documents", map[string]string{main: kubeletHeader + "---\n" + kubeletHeader}, []string{
			"kubelet.yaml:3: a second document; the file must hold one",
		}},
		{"syntax, everywhere", map[string]string{main: kubeletHeader + "maxPods: [1\n", dropIn: "{", own: header + "\tport: 1"}, []string{
			"kubelet.yaml:3: did not find expected ',' or ']'",
			"conf.d/10.conf:1: did not find expected node content",
			"own.yaml:3: found a tab character that violates indentation: the line is indented with a tab; use spaces",
		}},
		{"JSON", map[string]string{main: "{\n\"apiVersion\": \"kubelet.config.k8s.io/v1beta1\",\n\"kind\": \"KubeletConfiguration\",\n\"maxPods\": \"110\"}\n"}, []string{
			`kubelet.yaml:4: maxPods: "110" is not a whole number`,
		}},
		{"wrong types", map[string]string{main: kubeletHeader + `maxPods: many
port: 1e99
nodeStatusUpdateFrequency: 10
registerNode: maybe
evictionHard: 5%
registerWithTaints: [a]
systemReserved: {cpu: [1]}
mergeDefaultEvictionSettings: 1
authentication: [this is not looked at]
`}, []string{
			`kubelet.yaml:3: maxPods: "many" is not a whole number`,
			`kubelet.yaml:4: port: "1e99" is not a whole number`,
			`kubelet.yaml:5: nodeStatusUpdateFrequency: "10" is not a duration such as 10s or 1m30s`,
			`kubelet.yaml:6: registerNode: "maybe" is not true or false`,
			`kubelet.yaml:7: evictionHard: "5%" is not a mapping`,
			`kubelet.yaml:8: registerWithTaints[0]: "a" is not a mapping`,
			`kubelet.yaml:9: systemReserved[cpu]: a list is not a text`,
			`kubelet.yaml:10: mergeDefaultEvictionSettings: "1" is not true or false`,
		}},
		{"twice", map[string]string{main: kubeletHeader + "maxPods: 1\nmaxPods: 2\n"}, []string{`kubelet.yaml:4: maxPods: is set in line 3 already`}},
		{"values", map[string]string{
			main: kubeletHeader + `maxPods: -1
port: 99999
evictionHard: {memory.available: lots, memory.free: 1Gi, imagefs.available: 200%}
evictionSoft: {nodefs.available: 5%}
kubeReserved: {gpu: 1}
`,
			dropIn: kubeletHeader + `nodeLeaseDurationSeconds: -1
oomScoreAdj: -2000
evictionHard: {imagefs.available: -5%}
registerWithTaints: [{key: a, effect: Never}]
`,
			own: header + "port: 0\nevictionHard: {pid.available: few}\n",
		}, []string{
			`kubelet.yaml:3: maxPods: -1 is less than 0`,
			`kubelet.yaml:5: evictionHard[memory.available]: "lots" is not a quantity such as 100Mi, 1Gi or 1000`,
			`kubelet.yaml:5: evictionHard[memory.free]: unsupported eviction signal memory.free`,
			`kubelet.yaml:6: evictionSoft[nodefs.available]: grace period must be specified for the soft eviction threshold nodefs.available`,
			`kubelet.yaml:7: kubeReserved[gpu]: "gpu" is not "cpu" or "memory" or "ephemeral-storage" or "pid"`,
			`conf.d/10.conf:3: nodeLeaseDurationSeconds: -1 is less than 1`,
			`conf.d/10.conf:4: oomScoreAdj: -2000 is not between -1000 and 1000`,
			`conf.d/10.conf:5: evictionHard[imagefs.available]: eviction percentage threshold imagefs.available must be >= 0%: -5%`,
			`conf.d/10.conf:6: registerWithTaints[0]: effect: "Never" is not "NoSchedule" or "PreferNoSchedule" or "NoExecute"`,
			`own.yaml:3: port: 0 is less than 1`,
			`own.yaml:4: evictionHard[pid.available]: "few" is not a quantity such as 100Mi, 1Gi or 1000`,
		}},
		// The kubelet takes an empty threshold for a text too.
		{"an empty threshold", map[string]string{main: kubeletHeader + "evictionHard: {memory.available: }\n"}, []string{
			`kubelet.yaml:3: evictionHard[memory.available]: "" is not a quantity such as 100Mi, 1Gi or 1000`,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			var files Files
			for path, content := range test.files {
				write(t, filepath.Join(dir, path), content)
				switch path {
				case main:
					files.KubeletFile = path
				case dropIn:
					files.KubeletDir = filepath.Dir(path)
				case own:
					files.Own = path
				}
			}
			t.Chdir(dir)
			_, err := Load(files)
			if err == nil {
				t.Fatal("no error")
			}
			if diff := cmp.Diff(strings.Join(test.want, "\n"), err.Error()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestUnreadableKubeletConfig(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "d/sub.conf/a", "") // a folder is walked, whatever its name
	write(t, "link.d/real", kubeletHeader)
	for files, want := range map[*Files]string{
		{KubeletFile: "no"}: "open no: no such file or directory",
		{KubeletFile: "d"}:  "read d: is a directory",
		{KubeletDir: "no"}:  "lstat no: no such file or directory",
	} {
		if _, err := Load(*files); err == nil || err.Error() != "read kubelet configuration: "+want {
			t.Errorf("%v: %v, want %s", files, err, want)
		}
	}
	loaded, err := Load(Files{KubeletDir: "d"})
	if err != nil {
		t.Fatal(err)
	}
	if want := "d: note: not *.conf, and skipped as by a kubelet: d/sub.conf/a\n"; printed(t, loaded.Remarks) != want {
		t.Errorf("got %q", printed(t, loaded.Remarks))
	}
}

// However many unknown fields a file has, the remarks are bounded.
func TestManyUnknownFields(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write(t, path, kubeletHeader+strings.Repeat("y", 1000)+": 1\n")
	loaded, err := Load(Files{KubeletFile: path})
	if err != nil || len(loaded.Remarks) != 2 || len(loaded.Remarks[0].Text) > 2*maxRunes {
		t.Fatalf("error %v, %+v", err, loaded)
	}
	var remarks Remarks
	for i := range 1000 {
		remarks.add(0, path, i, "unknown")
	}
	if n := len(remarks); n != maxProblems+1 || remarks[n-1].Text != "and so on" {
		t.Errorf("%d remarks, %v", n, remarks)
	}
}

// With all of a kubelet's fields in one file, each that is not taken is named.
func TestEveryKubeletField(t *testing.T) {
	var file strings.Builder
	file.WriteString(kubeletHeader)
	for field := range strings.FieldsSeq(kubeletFields) {
		file.WriteString(field + ":\n")
	}
	path := filepath.Join(t.TempDir(), "f")
	write(t, path, file.String())
	loaded, err := Load(Files{KubeletFile: path})
	if err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.ContainerRuntimeEndpoint = kubeletRuntime
	if diff := cmp.Diff(want, loaded.file); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	ignored := loaded.Remarks[0].Text
	for field := range strings.FieldsSeq(kubeletFields) {
		taken := fieldNamed(reflect.ValueOf(loaded.file), field).IsValid() || field == "mergeDefaultEvictionSettings"
		if named := strings.Contains(ignored+",", " "+field+","); named == taken {
			t.Errorf("%s: taken %t, ignored %t", field, taken, named)
		}
	}
}

// Whatever the files contain, either they are wrong, with lines that name the place, or
// they are a configuration.
func FuzzKubeletConfig(f *testing.F) {
	f.Add([]byte(""), []byte(""))
	f.Add([]byte(kubeletHeader+"evictionHard: {}\n"), []byte(kubeletHeader+"evictionHard: {memory.available: 1Gi}\n"))
	f.Add([]byte(kubeletHeader+"nodeStatusUpdateFrequency: 20s\nevictionHard: &a {memory.available: 1Gi}\nevictionSoft: *a\n"),
		[]byte(kubeletHeader+"evictionHard: ~\nregisterNode:\nregisterWithTaints: [{key: a, b: c}]\n"))
	f.Add([]byte(kubeletHeader+"mergeDefaultEvictionSettings: true\nx: &x [*x]\nkubeReserved: *x\n"), []byte("{"))
	f.Fuzz(func(t *testing.T, main, dropIn []byte) {
		o := &overlay{}
		o.add("main", main, false)
		o.add("drop-in", dropIn, true)
		o.decode()
		loaded, err := o.settle("file", nil, o.values, nil, nil)
		if err == nil {
			if f := loaded.file; f.EvictionHard == nil || f.NodeStatusReportFrequency <= 0 || loaded.Agent.Mode != nodeprobe.Observe {
				t.Fatalf("no error, and %+v", loaded)
			}
			for _, r := range loaded.Remarks {
				if r.Path != "main" && r.Path != "drop-in" && r.Path != "file" || r.Text == "" || strings.Contains(r.Text, "\n") {
					t.Errorf("remark %+v", r)
				}
			}
			return
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if !strings.HasPrefix(line, "main:") && !strings.HasPrefix(line, "drop-in:") && !strings.HasPrefix(line, "file: ") || len(line) > 4*maxRunes {
				t.Errorf("not a line about the files: %q", line)
			}
		}
	})
}

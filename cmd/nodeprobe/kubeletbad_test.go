package main

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Each problem names the file that has it, and its line, whichever of them that
// is.
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
			"own.yaml:3: found a tab character that violates indentation",
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
evictionHard: {imagefs.available: -5%}
registerWithTaints: [{key: a, effect: Never}]
`,
			own: header + "port: 0\nevictionHard: {pid.available: few}\n",
		}, []string{
			`kubelet.yaml:3: maxPods: -1 is less than 0`,
			`kubelet.yaml:5: evictionHard[memory.available]: ` + quantityRule,
			`kubelet.yaml:5: evictionHard[memory.free]: unsupported eviction signal memory.free`,
			`kubelet.yaml:6: evictionSoft[nodefs.available]: grace period must be specified for the soft eviction threshold nodefs.available`,
			`kubelet.yaml:7: kubeReserved[gpu]: --kube-reserved value failed to parse: cannot reserve "gpu" resource`,
			`conf.d/10.conf:3: nodeLeaseDurationSeconds: -1 is less than 1`,
			`conf.d/10.conf:4: evictionHard[imagefs.available]: eviction percentage threshold imagefs.available must be >= 0%: -5%`,
			`conf.d/10.conf:5: registerWithTaints[0]: effect: "Never" is not "NoSchedule" or "PreferNoSchedule" or "NoExecute"`,
			`own.yaml:3: port: 0 is less than 1`,
			`own.yaml:4: evictionHard[pid.available]: ` + quantityRule,
		}},
		// The kubelet takes an empty threshold for a text too.
		{"an empty threshold", map[string]string{main: kubeletHeader + "evictionHard: {memory.available: }\n"}, []string{
			`kubelet.yaml:3: evictionHard[memory.available]: ` + quantityRule,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			var args []string
			for path, content := range test.files {
				write(t, filepath.Join(dir, path), content)
				args = append(args, map[string]string{main: "--kubelet-config=kubelet.yaml", dropIn: "--kubelet-config-dir=conf.d", own: own}[path])
			}
			t.Chdir(dir)
			want := outcome{code: exitUsage, stderr: "nodeprobe: " + strings.Join(test.want, "\nnodeprobe: ") + "\n"}
			got := nodeprobe(t, append([]string{"config", "check"}, args...)...)
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(outcome{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestUnreadableKubeletConfig(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "d/sub.conf/a", "") // a folder is walked, whatever its name
	write(t, "link.d/real", kubeletHeader)
	for args, want := range map[string]string{
		"--kubelet-config=no":     "open no: no such file or directory",
		"--kubelet-config=d":      "read d: is a directory",
		"--kubelet-config-dir=no": "lstat no: no such file or directory",
	} {
		got := nodeprobe(t, "config", "check", args)
		if want := "nodeprobe: read kubelet configuration: " + want + "\n"; got.code != exitUsage || got.stderr != want {
			t.Errorf("%s: got %+v", args, got)
		}
	}
	got := nodeprobe(t, "config", "check", "--kubelet-config-dir=d")
	if want := "d: note: not *.conf, and skipped as by a kubelet: d/sub.conf/a\nconfiguration: ok\n"; got.code != 0 || got.stdout != want {
		t.Errorf("got %+v", got)
	}
}

// However much a file has that is not known, what is said of it is short.
func TestManyUnknownFields(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write(t, path, kubeletHeader+strings.Repeat("y", 1000)+": 1\n")
	_, p, err := loadConfig("", kubeletFiles{file: path})
	if err != nil || len(p.remarks) != 2 || len(p.remarks[0].text) > 2*mostRunes {
		t.Fatalf("error %v, policy %+v", err, p)
	}
	var k kubeletConfig
	for i := range 1000 {
		k.remarks.add(0, path, i, "unknown")
	}
	if n := len(k.remarks); n != mostProblems+1 || k.remarks[n-1].text != "and so on" {
		t.Errorf("%d remarks, %v", n, k.remarks)
	}
}

// All of a kubelet's fields at once are not too much: each that is not taken is
// named.
func TestEveryKubeletField(t *testing.T) {
	var file strings.Builder
	file.WriteString(kubeletHeader)
	for field := range strings.FieldsSeq(kubeletFields) {
		file.WriteString(field + ":\n")
	}
	path := filepath.Join(t.TempDir(), "f")
	write(t, path, file.String())
	c, p, err := loadConfig("", kubeletFiles{file: path})
	if err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.ContainerRuntimeEndpoint = kubeletRuntime
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	ignored := p.remarks[0].text
	for field := range strings.FieldsSeq(kubeletFields) {
		taken := fieldNamed(reflect.ValueOf(c), field).IsValid() || field == "mergeDefaultEvictionSettings"
		if named := strings.Contains(ignored+",", " "+field+","); named == taken {
			t.Errorf("%s: taken %t, ignored %t", field, taken, named)
		}
	}
}

// Whatever the files hold, either they are wrong, with lines that say where, or
// there is a policy.
func FuzzKubeletConfig(f *testing.F) {
	f.Add([]byte(""), []byte(""))
	f.Add([]byte(kubeletHeader+"evictionHard: {}\n"), []byte(kubeletHeader+"evictionHard: {memory.available: 1Gi}\n"))
	f.Add([]byte(kubeletHeader+"nodeStatusUpdateFrequency: 20s\nevictionHard: &a {memory.available: 1Gi}\nevictionSoft: *a\n"),
		[]byte(kubeletHeader+"evictionHard: ~\nregisterNode:\nregisterWithTaints: [{key: a, b: c}]\n"))
	f.Add([]byte(kubeletHeader+"mergeDefaultEvictionSettings: true\nx: &x [*x]\nkubeReserved: *x\n"), []byte("{"))
	f.Fuzz(func(t *testing.T, main, dropIn []byte) {
		k := &kubeletConfig{config: defaults()}
		k.add("main", main, false)
		k.add("drop-in", dropIn, true)
		k.decode()
		c, p, err := k.settle("file", nil, k.config, nil, nil)
		if err == nil {
			if p == nil || c.EvictionHard == nil || c.NodeStatusReportFrequency <= 0 || c.Mode != modeObserve {
				t.Fatalf("no error, and %+v %+v", c, p)
			}
			for _, r := range p.remarks {
				if r.path != "main" && r.path != "drop-in" || r.text == "" || strings.Contains(r.text, "\n") {
					t.Errorf("remark %+v", r)
				}
			}
			return
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if !strings.HasPrefix(line, "main:") && !strings.HasPrefix(line, "drop-in:") && !strings.HasPrefix(line, "file: ") || len(line) > 4*mostRunes {
				t.Errorf("not a line about the files: %q", line)
			}
		}
	})
}

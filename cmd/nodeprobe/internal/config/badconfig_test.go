package config

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Each problem is a line with file, line, field and reason.
func TestBadConfig(t *testing.T) {
	for _, test := range []struct {
		name, file string
		want       []string // without the file's name
	}{
		{"empty", "", []string{":1: the file is empty; it needs apiVersion and kind"}},
		{"only comments", "# one\n# two\n", []string{":1: the file is empty; it needs apiVersion and kind"}},
		{"only a separator", "---\n", []string{":1: the file is empty; it needs apiVersion and kind"}},
		{"a text", "observe\n", []string{`:1: "observe" is not a mapping of fields to values`}},
		{"a list", "# a\n- b\n", []string{`:2: a list is not a mapping of fields to values`}},
		{"no apiVersion, no kind", "mode: observe\n", []string{
			`: apiVersion: "" is not "nodeprobe.dev/v1alpha1"`,
			`: kind: "" is not "NodeProbeConfiguration"`,
		}},
		{"empty apiVersion, empty kind", "apiVersion:\nkind: ~\n", []string{
			`:1: apiVersion: "" is not "nodeprobe.dev/v1alpha1"`,
			`:2: kind: "" is not "NodeProbeConfiguration"`,
		}},
		{"foreign kind", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n", []string{
			`:1: apiVersion: "kubelet.config.k8s.io/v1beta1" is not "nodeprobe.dev/v1alpha1"`,
			`:2: kind: "KubeletConfiguration" is not "NodeProbeConfiguration"`,
		}},
		{"unknown fields", header + "modus: own\nregisterWithTaints:\n- {key: a, effekt: NoSchedule}\n", []string{
			`:3: modus: unknown field`,
			`:5: registerWithTaints[0].effekt: unknown field`,
		}},
		{"duplicates", header + "mode: own\nmode: observe\nnodeLabels:\n  a: b\n  a: b\n", []string{
			`:4: mode: is set in line 3 already`,
			`:7: nodeLabels[a]: is set in line 6 already`,
		}},
		{"wrong types", header + `maxPods: many
port: [1]
podsPerCore: 1.5
nodeLeaseDurationSeconds: 3000000000
sampleInterval: 10
statfsTimeout: {}
registerNode: maybe
evictionHard: 5%
imageDirectories: /a
nodeName: [a]
registerWithTaints: [a]
nodeLabels: {a: [b]}
`, []string{
			`:3: maxPods: "many" is not a whole number`,
			`:4: port: a list is not a whole number`,
			`:5: podsPerCore: "1.5" is not a whole number`,
			`:6: nodeLeaseDurationSeconds: "3000000000" is out of range`,
			`:7: sampleInterval: "10" is not a duration such as 10s or 1m30s`,
			`:8: statfsTimeout: a mapping is not a duration such as 10s or 1m30s`,
			`:9: registerNode: "maybe" is not true or false`,
			`:10: evictionHard: "5%" is not a mapping`,
			`:11: imageDirectories: "/a" is not a list`,
			`:12: nodeName: a list is not a text`,
			`:13: registerWithTaints[0]: "a" is not a mapping`,
			`:14: nodeLabels[a]: a list is not a text`,
		}},
		{"two documents", header + "---\n" + header, []string{`:3: a second document; the file must hold one`}},
		{"augment", header + "mode: augment\nconditions:\n  Ready: {when: [MemoryPressure], reason: A, okReason: B}\n  nodeprobe.dev/MemoryPressure: {when: [memory.free < 5%], for: -1s}\n  example.com/X: {when: [PIDPressure], reason: two words}\n  example.com/Off: {when: []}\nconditionsOnExit: forget\nconditionHeartbeat: 1s\n", []string{
			`:5: conditions[Ready]: a kubelet writes this condition; choose a type of your own, such as example.com/Ready`,
			`:6: conditions[nodeprobe.dev/MemoryPressure]: when: "memory.free < 5%": unknown signal memory.free`,
			`:6: conditions[nodeprobe.dev/MemoryPressure]: for: -1s is less than 0s`,
			`:7: conditions[example.com/X]: reason: "two words" is not one word such as MemoryIsShort`,
			`:7: conditions[example.com/X]: okReason: "" is not one word such as MemoryIsShort`,
			`:9: conditionsOnExit: "forget" is not "remove" or "keep"`,
			`:10: conditionHeartbeat: 1s is less than 10s`,
		}},
		{"conditions", header + `conditions:
  NetworkUnavailable: {when: [MemoryPressure], reason: A, okReason: B}
  example.com/A: {when: [memory.full.avg60 > 120%], reason: A, okReason: B}
  example.com/B: {when: [memory.full.avg30 > 20%], reason: A, okReason: B}
  example.com/C: {when: [PIDPressure], for: soon, hold: 10, reason: A, okReason: B}
  example.com/D: {when: PIDPressure, reason: A, okReason: B}
  example.com/E: {wen: [PIDPressure], reason: A, okReason: B}
  example.com/F: {when: [Ready], reason: A, okReason: B}
  example.com/G: {when: [memory.available < -5%], reason: A, okReason: B}
`, []string{
			`:4: conditions[NetworkUnavailable]: a kubelet writes this condition; choose a type of your own, such as example.com/NetworkUnavailable`,
			`:5: conditions[example.com/A]: when: "memory.full.avg60 > 120%": "120%" is not a share from 0% to below 100%`,
			`:6: conditions[example.com/B]: when: "memory.full.avg30 > 20%": unknown signal memory.full.avg30`,
			`:7: conditions[example.com/C].for: "soon" is not a duration such as 10s or 1m30s`,
			`:7: conditions[example.com/C].hold: "10" is not a duration such as 10s or 1m30s`,
			`:8: conditions[example.com/D].when: "PIDPressure" is not a list`,
			`:9: conditions[example.com/E].wen: unknown field`,
			`:10: conditions[example.com/F]: when: "Ready": not a term such as "memory.available < 100Mi", "io.full.avg60 > 20%", "nodefs.readonly" or "MemoryPressure"`,
			`:11: conditions[example.com/G]: when: "memory.available < -5%": eviction percentage threshold memory.available must be >= 0%: -5%`,
		}},
		{
			"long reason", header + "conditions:\n  example.com/A: {when: [MemoryPressure], reason: A, okReason: " + strings.Repeat("x", 129) + "}\n",
			[]string{`:4: conditions[example.com/A]: okReason: 129 characters, of which at most 128 are allowed`},
		},
		{"long type", header + "conditions:\n  ? example.com/" + strings.Repeat("x", 64) + "\n  : {when: [MemoryPressure], reason: A, okReason: B}\n", []string{
			`:4: conditions[example.com/` + strings.Repeat("x", 64) + `]: "example.com/` + strings.Repeat("x", 64) + `" is not a qualified name such as example.com/rack: 64 characters, of which at most 63 are allowed after '/'`,
		}},
		{"many conditions", header + "conditions:\n" + manyConditions(59), []string{`:3: conditions: 65 conditions, of which at most 64 fit on a Node`}}, // six are there by default
		{"no such mode", header + "mode: bogus\n", []string{`:3: mode: "bogus" is not "observe" or "augment" or "own"`}},
		{"choices", header + "bpf: on\ncloudProvider: aws\nlogLevel: INFO+2\nlogFormat: xml\n", []string{
			`:3: bpf: "on" is not "auto" or "off"`,
			`:4: cloudProvider: "aws" is not "" or "external"`,
			`:5: logLevel: "INFO+2" is not "debug" or "info" or "warn" or "error"`,
			`:6: logFormat: "xml" is not "text" or "json"`,
		}},
		{"thresholds", header + `evictionHard:
  memory.available: 110%
  nodefs.available: -5%
  imagefs.available: "0"
  pid.available: junk
  memory.free: 1Gi
evictionSoft:
  nodefs.available: 5%
evictionSoftGracePeriod:
  pid.available: -1m
evictionMinimumReclaim:
  memory.available: 0%
  nodefs.available: "-1"
evictionPressureTransitionPeriod: -1s
`, []string{
			`:4: evictionHard[memory.available]: eviction percentage threshold memory.available must be <= 100%: 110%`,
			`:5: evictionHard[nodefs.available]: eviction percentage threshold nodefs.available must be >= 0%: -5%`,
			`:6: evictionHard[imagefs.available]: eviction threshold imagefs.available must be positive: 0`,
			`:7: evictionHard[pid.available]: "junk" is not a quantity such as 100Mi, 1Gi or 1000`,
			`:8: evictionHard[memory.free]: unsupported eviction signal memory.free`,
			`:10: evictionSoft[nodefs.available]: grace period must be specified for the soft eviction threshold nodefs.available`,
			`:12: evictionSoftGracePeriod[pid.available]: invalid eviction grace period specified: -1m, must be a positive value`,
			`:14: evictionMinimumReclaim[memory.available]: eviction percentage minimum reclaim memory.available must be positive: 0%`,
			`:15: evictionMinimumReclaim[nodefs.available]: negative eviction minimum reclaim specified for nodefs.available`,
			`:16: evictionPressureTransitionPeriod: -1s is less than 0s`,
		}},
		{"ranges", header + `sampleInterval: -1s
statfsTimeout: 2m
nodeStatusUpdateFrequency: 0s
nodeStatusReportFrequency: 1ms
nodeLeaseDurationSeconds: 0
maxPods: -1
podsPerCore: -1
port: 65536
nodeStatusMaxImages: -2
shutdownGracePeriod: -1s
nodeName: " "
`, []string{
			`:3: sampleInterval: -1s is less than 100ms`,
			`:4: statfsTimeout: 2m0s is more than 1m0s`,
			`:5: nodeStatusUpdateFrequency: 0s is less than 1s`,
			`:6: nodeStatusReportFrequency: 1ms is less than 1s`,
			`:7: nodeLeaseDurationSeconds: 0 is less than 1`,
			`:8: maxPods: -1 is less than 0`,
			`:9: podsPerCore: -1 is less than 0`,
			`:10: port: 65536 is more than 65535`,
			`:11: nodeStatusMaxImages: -2 is less than -1`,
			`:12: shutdownGracePeriod: -1s is less than 0s`,
			`:13: nodeName: "" is not the name of a node: use lower-case letters, digits, '-' and '.', such as node-1.example.com`,
		}},
		{"reserved", header + `systemReserved: {gpu: 1, cpu: -1}
kubeReserved:
  memory: much
  ephemeral-storage: 1e-999999999
reservedSystemCPUs: 0-
`, []string{
			`:3: systemReserved[cpu]: -1 is negative`,
			`:3: systemReserved[gpu]: "gpu" is not "cpu" or "memory" or "ephemeral-storage" or "pid"`,
			`:5: kubeReserved[memory]: "much" is not a quantity such as 100Mi, 1Gi or 1000`,
			`:6: kubeReserved[ephemeral-storage]: "1e-999999999" is not a quantity such as 100Mi, 1Gi or 1000`,
			`:7: reservedSystemCPUs: "0-" is not a list of CPUs such as 0-1,8`,
		}},
		{"image service without a runtime", header + "imageServiceEndpoint: unix:///run/images.sock\n", []string{
			`:3: imageServiceEndpoint: is set, but the endpoint of the container runtime is not`,
		}},
		{"locked memory", header + "lockedMemoryLimit: 40MB\n", []string{`:3: lockedMemoryLimit: "40MB" is not a quantity: use 40M or 40Mi`}},
		{"less locked memory than it needs", header + "lockedMemoryLimit: 8Mi\noomScoreAdj: -1001\n", []string{
			`:3: lockedMemoryLimit: 8Mi is less than nodeprobe uses; use 16Mi or more, or 0 to lock nothing`,
			`:4: oomScoreAdj: -1001 is not between -1000 and 1000`,
		}},
		{"negative locked memory", header + "lockedMemoryLimit: -1\noomScoreAdj: 1001\n", []string{
			`:3: lockedMemoryLimit: -1 is less than nodeprobe uses; use 16Mi or more, or 0 to lock nothing`,
			`:4: oomScoreAdj: 1001 is not between -1000 and 1000`,
		}},
		{"volume limits", header + `volumeLimits:
  disk.example.com: -1
  a.example.com: 2.5
  b.example.com: 9223372036854775808
  c.example.com:
  d.example.com: 1
  attachable-volumes-csi-d.example.com: 1
  attachable-volumes-: 1
  disk_1: 1
  a.driver.whose.name.is.longer.than.it.may.be.which.is.63.letters: 1
volumeLimitsFromCSINode: maybe
`, []string{
			`:4: volumeLimits[disk.example.com]: "-1" is not a whole number, 0 or more`,
			`:5: volumeLimits[a.example.com]: "2.5" is not a whole number, 0 or more`,
			`:6: volumeLimits[b.example.com]: "9223372036854775808" is not a whole number, 0 or more`,
			`:7: volumeLimits[c.example.com]: "" is not a whole number, 0 or more`,
			`:8: volumeLimits[d.example.com]: attachable-volumes-csi-d.example.com has a limit already`,
			`:10: volumeLimits[attachable-volumes-]: not the name of a resource; use one such as attachable-volumes-aws-ebs`,
			`:11: volumeLimits[disk_1]: not the name of a CSI driver; use letters, digits, '-' and '.', such as disk.example.com`,
			`:12: volumeLimits[a.driver.whose.name.is.longer.than.it.may.be.which.is.63.letters]: not the name of a CSI driver: it has 64 characters, of which at most 63 are allowed`,
			`:13: volumeLimitsFromCSINode: "maybe" is not true or false`,
		}},
		{"taints", header + `registerWithTaints:
- {key: a, effect: NoSchedule}
- {key: a, effect: Never}
- {key: a, value: "!", effect: NoSchedule}
- {key: a, value: b, effect: NoSchedule}
`, []string{
			`:5: registerWithTaints[1]: effect: "Never" is not "NoSchedule" or "PreferNoSchedule" or "NoExecute"`,
			`:6: registerWithTaints[2]: value "!": use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends`,
			`:7: registerWithTaints[3]: a second taint with key "a" and effect "NoSchedule"`,
		}},
		{"labels", header + "nodeLabels:\n  a b: c\n  d: e f\n", []string{
			`:4: nodeLabels[a b]: "a b" is not a qualified name such as example.com/rack: use letters, digits, '-', '_' and '.', with a letter or digit at both ends`,
			`:5: nodeLabels[d]: value "e f": use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends`,
		}},
		{"addresses", header + "nodeIP: 300.0.0.1\nwebListenAddress: localhost\nrootDirectory: var\nimageDirectories:\n- /a\n- b\n", []string{
			`:3: nodeIP: "300.0.0.1" is not an IP address`,
			`:4: webListenAddress: "localhost" is not an address with a port, such as 127.0.0.1:9732 or [::1]:9732`,
			`:5: rootDirectory: "var" is not an absolute path`,
			`:8: imageDirectories[1]: "b" is not an absolute path`,
		}},
		{"ports", header + "webListenAddress: 127.0.0.1:99999\n", []string{`:3: webListenAddress: "99999" is not a port in "127.0.0.1:99999"; use a number from 0 to 65535`}},
		{"a version", header + "kubeletVersion: nodeprobe\n", []string{`:3: kubeletVersion: "nodeprobe" is not a semantic version such as v1.36.0`}},
		{"tab", header + "evictionHard:\n\tmemory.available: 5%\n", []string{`:4: found character that cannot start any token: the line is indented with a tab; use spaces`}},
		{"not closed", "# comment\n\n" + header + "mode: [own\nbpf: off\n", []string{`:5: did not find expected ',' or ']'`}},
		{"indentation", "# comment\n\n" + header + "mode: own\n bpf: off\n", []string{`:6: mapping values are not allowed in this context: bpf is indented further than mode in line 5, which has a value and can have no fields`}},
		{"indentation of an entry", header + "evictionHard:\n    memory.available: 5%\n  # a comment\n\n  pid.available: 5%\n", []string{
			`:7: did not find expected key: no field above pid.available begins in the same column, 3`,
		}},
		{"indentation in a list", header + "registerWithTaints:\n- key: a\n   effect: NoExecute\n", []string{
			`:5: mapping values are not allowed in this context: effect is indented further than key in line 4, which has a value and can have no fields`,
		}},
		{"not closed above", header + "nodeLabels:\n  a: {b\nmode: own\n", []string{`:4: did not find expected ',' or '}'`}},
		{"not closed, indented", header + "nodeLabels: {a: b,\n  c: d\nmode: own\n", []string{`:4: did not find expected ',' or '}'`}},
		{"no indentation", header + "evictionHard:\nmemory.available: 5%\nconditions:\n  example.com/A:\n    when:\n    reasons: A\n", []string{
			`:4: memory.available: unknown field; if it belongs to evictionHard in line 3, which has no value, indent it further`,
			`:8: conditions[example.com/A].reasons: unknown field; if it belongs to when in line 7, which has no value, indent it further`,
		}},
		{"an old name", header + "exitMessage: a\nlastWord: b\n", []string{`:4: exitMessage: is set in line 3 already`}},
		{"health", header + "webListenAddress: :80\nwebHealthListenAddress: :80\n", []string{
			`:4: webHealthListenAddress: is webListenAddress already, which serves the health endpoints too; use another port`,
		}},
		{"health address", header + "webHealthListenAddress: here\n", []string{
			`:3: webHealthListenAddress: "here" is not an address with a port, such as 127.0.0.1:9732 or [::1]:9732`,
		}},
		{"field manager and annotations", header + "fieldManager: my kubelet\nnodeAnnotations: {a/b/c: d}\n", []string{
			`:3: fieldManager: "my kubelet" is not a field manager: use one word of at most 128 characters without '/'`,
			`:4: nodeAnnotations[a/b/c]: "a/b/c" is not a qualified name such as example.com/rack: it has more than one '/'`,
		}},
		{"a kubelet's field manager", header + "fieldManager: kubelet-2\n", []string{
			`:3: fieldManager: "kubelet-2" would be taken for a kubelet; choose another name`,
		}},
		{"node names", header + "nodeName: My_Node\n", []string{
			`:3: nodeName: "my_node" is not the name of a node: use lower-case letters, digits, '-' and '.', such as my-node`,
		}},
		{"label domain", header + "nodeLabels: {Example_com/rack: a}\n", []string{
			`:3: nodeLabels[Example_com/rack]: "Example_com/rack" is not a qualified name such as example.com/rack: what stands before '/' is not a domain`,
		}},
		{"quantities", header + `evictionHard: {memory.available: 100MB, nodefs.available: 5 Gi, imagefs.available: 1.5kb, pid.available: 10 000, nodefs.inodesFree: x%}
evictionMinimumReclaim: {memory.available: 20MiB}
evictionSoft: {nodefs.available: 1000B}
evictionSoftGracePeriod: {nodefs.available: soon}
systemReserved: {pid: 1b, memory: 1gb, cpu: 1m1, ephemeral-storage: 1tib}
conditions: {example.com/A: {when: [PIDPressure and memory.available < 100MB], reason: A, okReason: B}}
`, []string{
			`:3: evictionHard[imagefs.available]: "1.5kb" is not a quantity: use 1.5k or 1.5Ki`,
			`:3: evictionHard[memory.available]: "100MB" is not a quantity: use 100M or 100Mi`,
			`:3: evictionHard[nodefs.available]: "5 Gi" is not a quantity: use 5Gi`,
			`:3: evictionHard[nodefs.inodesFree]: "x%" is not a share such as 10%`,
			`:3: evictionHard[pid.available]: "10 000" is not a quantity such as 100Mi, 1Gi or 1000`,
			`:4: evictionMinimumReclaim[memory.available]: "20MiB" is not a quantity: use 20Mi`,
			`:5: evictionSoft[nodefs.available]: "1000B" is not a quantity: use 1000`,
			`:6: evictionSoftGracePeriod[nodefs.available]: "soon" is not a duration such as 10s or 1m30s`,
			`:7: systemReserved[cpu]: "1m1" is not a quantity such as 100Mi, 1Gi or 1000`,
			`:7: systemReserved[ephemeral-storage]: "1tib" is not a quantity: use 1Ti`,
			`:7: systemReserved[memory]: "1gb" is not a quantity: use 1G or 1Gi`,
			`:7: systemReserved[pid]: "1b" is not a quantity: use 1`,
			`:8: conditions[example.com/A]: when: "memory.available < 100MB": "100MB" is not a quantity: use 100M or 100Mi`,
		}},
		{"stray text", "# comment\n\n" + header + "mode: own\nbpf\nport: 1\n", []string{`:6: could not find expected ':'`}},
		{"no such anchor", header + "nodeName: *a\n", []string{`:3: unknown anchor 'a' referenced`}},
		{"merge key", header + "evictionHard: &a {}\nevictionSoft: {<<: *a}\n", []string{`:4: evictionSoft: "<<" is not the name of an entry`}},
		{"key that is no name", header + "? [a]\n: b\n", []string{`:3: a list is not the name of an entry`}},
		{"itself", header + "imageDirectories: &a [*a]\n", []string{`:3: imageDirectories[0]: a list is not a text`}},
		{"NUL", header + "mode: own\n\x00mode: bogus\n", []string{`:4: a control character, U+0000`}},
		{"escape sequence", header + "mode: \x1b[2J\n", []string{`:3: a control character, U+001B`}},
		{"not UTF-8", header + "mode: \xff\n", []string{`:3: not UTF-8 text`}},
		{"binary", "\x7fELF\x02\x01\x01\x00\x00", []string{`:1: a control character, U+0002`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "c.yaml")
			write(t, path, test.file)
			loaded, err := Load(Files{Own: path})
			if err == nil {
				t.Fatalf("no error, and %+v", loaded)
			}
			want := path + strings.Join(test.want, "\n"+path)
			if diff := cmp.Diff(want, err.Error()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestUnreadableConfig(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing.yaml")
	for path, want := range map[string]string{
		missing: "open " + missing + ": no such file or directory",
		dir:     "read " + dir + ": is a directory",
	} {
		if _, err := Load(Files{Own: path}); err == nil || err.Error() != "read configuration: "+want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// However big the file and whatever it expands to, the error is short.
func TestHugeConfig(t *testing.T) {
	bomb := header + "a: &a [x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c <= 'z'; c++ {
		last := string(c - 1)
		bomb += string(c) + ": &" + string(c) + " [" + strings.TrimSuffix(strings.Repeat("*"+last+", ", 9), ", ") + "]\n"
	}
	for _, test := range []struct{ name, file, want string }{
		{"a long value", header + "mode: " + strings.Repeat("a", 4<<20), `f:3: mode: "aaa`},
		{"many problems", header + "imageDirectories: [" + strings.Repeat("a, ", 1<<12) + "a]", "f:3: imageDirectories[0]"},
		{"a bomb of aliases", bomb + "imageDirectories: *z\n", "f:3: a: unknown field\n"},
		{"deep nesting", header + "nodeName: " + strings.Repeat("[", 1<<20), "f:3: exceeded max depth of 10000"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // the race detector makes the YAML library slow
			_, err := parse("f", test.file)
			if err == nil {
				t.Fatal("no error")
			}
			if text := err.Error(); !strings.HasPrefix(text, test.want) || len(text) > 32<<10 {
				t.Errorf("got %d bytes: %.200s", len(text), text)
			}
		})
	}
}

// A file is either valid, or the error has located lines.
func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(""))
	f.Add([]byte(defaultYAML))
	f.Add([]byte(header + "registerWithTaints:\n- {key: a, effect: NoSchedule}\nimageDirectories: &x [*x]\n"))
	f.Add([]byte(header + "evictionSoft: {memory.available: 1e9, \"\": a}\nmaxPods: 0x10\n---\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		loaded, err := parse("file", string(data))
		if err == nil {
			if loaded.file.APIVersion != apiVersion || loaded.Agent.SampleInterval <= 0 {
				t.Fatalf("no error, and %+v", loaded)
			}
			return
		}
		if loaded != nil {
			t.Errorf("error %v, and %+v", err, loaded)
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if !strings.HasPrefix(line, "file:") || len(line) > 4*maxRunes {
				t.Errorf("not a line about the file: %q", line)
			}
		}
	})
}

// manyConditions are rows of conditions.
func manyConditions(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "  example.com/C%d: {when: [MemoryPressure], reason: A, okReason: B}\n", i)
	}
	return b.String()
}

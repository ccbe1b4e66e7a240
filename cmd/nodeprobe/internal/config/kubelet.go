package config

import (
	"cmp"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// kubeletRuntime is the kubelet's default for containerRuntimeEndpoint. Ours is none,
// but a node that had a kubelet has a runtime.
const kubeletRuntime = "unix:///run/containerd/containerd.sock"

// overlay is what a kubelet's files come to over our defaults. Each document is decoded
// once, in order, into values; what a kubelet would make of it is in theirs.
type overlay struct {
	values    file
	theirs    theirs
	literal   bool // evictionHard has none of our defaults
	documents []document
	ignored   []string // fields
	problems  []problem
	remarks   Remarks

	hard  []hardPatch // evictionHard of the documents that have it
	merge *bool       // mergeDefaultEvictionSettings
}

// theirs are the values that a kubelet would have and that differ from ours, by two
// of its rules that surprise people: nodeStatusReportFrequency follows
// nodeStatusUpdateFrequency, and one threshold in evictionHard drops the other
// defaults.
type theirs struct {
	report time.Duration
	hard   map[string]string
}

// document is a KubeletConfiguration, or a patch of one.
type document struct {
	path   string
	root   *yaml.Node
	dropIn bool
}

// hardPatch is evictionHard of one document: entries that are nil are deleted, and if
// all is nil, the field is.
type hardPatch struct {
	dropIn  bool
	entries map[string]*string
}

func (p hardPatch) apply(hard map[string]string) map[string]string {
	if p.entries == nil {
		return nil
	}
	patched := map[string]string{}
	maps.Copy(patched, hard)
	for signal, value := range p.entries {
		if value == nil {
			delete(patched, signal)
			continue
		}
		patched[signal] = *value
	}
	return patched
}

// readKubelet reads a kubelet's files; either may be "".
func readKubelet(file, dir string) (*overlay, error) {
	o := &overlay{}
	if file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read kubelet configuration: %w", err)
		}
		o.add(file, data, false)
	}
	if dir != "" {
		if err := o.addDropIns(dir); err != nil {
			return nil, fmt.Errorf("read kubelet configuration: %w", err)
		}
	}
	if file == "" && dir == "" {
		o.values = defaults()
		return o, nil
	}
	o.decode()
	return o, nil
}

// addDropIns walks the directory in the order in which a kubelet does.
func (o *overlay) addDropIns(dir string) error {
	var skipped []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || entry.IsDir():
			return err
		case filepath.Ext(path) != ".conf":
			skipped = append(skipped, path)
			return nil
		}
		data, err := os.ReadFile(path)
		if err == nil {
			o.add(path, data, true)
		}
		return err
	})
	if len(skipped) > 0 {
		o.remarks.add(slog.LevelInfo, dir, 0, "not *.conf, and skipped as by a kubelet: %s", strings.Join(skipped, ", "))
	}
	return err
}

// add parses a file, which must have apiVersion and kind.
func (o *overlay) add(path string, data []byte, dropIn bool) {
	root, bad := parseDocument(data)
	if bad != nil {
		bad.path = path
		o.problems = append(o.problems, *bad)
	} else if wrong := checkHeader(path, root); len(wrong) > 0 {
		o.problems = append(o.problems, wrong...)
		root = nil // its fields may mean anything
	}
	if root == nil {
		root = &yaml.Node{Kind: yaml.MappingNode}
	}
	o.documents = append(o.documents, document{path: path, root: root, dropIn: dropIn})
}

func checkHeader(path string, root *yaml.Node) (wrong []problem) {
	for _, header := range [][2]string{{"apiVersion", "kubelet.config.k8s.io/v1beta1"}, {"kind", "KubeletConfiguration"}} {
		value := ""
		if _, n := entry(root, header[0]); n != nil && !isNull(n) {
			value = n.Value
		}
		if err := oneOf(value, header[1]); err != nil {
			wrong = append(wrong, problem{path: path, line: lineOf(root, header[0], ""), field: header[0], err: err})
		}
	}
	return wrong
}

// place returns where a field, or an entry of it, was set last: in our own file, whose
// path is "" and whose root may be nil, or in one of the kubelet's.
func (o *overlay) place(own *yaml.Node, field, key string) (path string, line int) {
	if holds(own, field, key) || !isKubeletField(field) {
		return "", lineOf(own, field, key)
	}
	for _, doc := range slices.Backward(o.documents) {
		if holds(doc.root, field, key) {
			return doc.path, lineOf(doc.root, field, key)
		}
	}
	return "", lineOf(own, field, key)
}

// decode puts the documents over the defaults. A kubelet applies its defaults twice: to
// its file, and to what the drop-ins make of that.
func (o *overlay) decode() {
	standard := defaults()
	standard.ContainerRuntimeEndpoint = kubeletRuntime
	o.values = unset()
	dropIns := o.documents
	if len(dropIns) > 0 && !dropIns[0].dropIn {
		o.read(dropIns[0])
		dropIns = dropIns[1:]
	}
	o.theirs.report = cmp.Or(o.values.NodeStatusReportFrequency, o.values.NodeStatusUpdateFrequency, standard.NodeStatusReportFrequency)
	o.values.setDefaults(&standard)
	reset := false
	for _, doc := range dropIns {
		o.read(doc)
		reset = reset || holds(doc.root, "nodeStatusReportFrequency", "")
	}
	if reset {
		o.theirs.report = cmp.Or(o.values.NodeStatusReportFrequency, o.values.NodeStatusUpdateFrequency, standard.NodeStatusReportFrequency)
	}
	o.values.setDefaults(&standard)
	o.decideHard(standard.EvictionHard)
}

// decideHard computes evictionHard, ours and a kubelet's.
func (o *overlay) decideHard(standard map[string]string) {
	ours, theirs := standard, map[string]string(nil)
	patches := o.hard
	if len(o.documents) > 0 && !o.documents[0].dropIn {
		theirs = maps.Clone(standard)
		delete(theirs, "pid.available") // a kubelet has no default for it
	}
	if len(patches) > 0 && !patches[0].dropIn {
		main := patches[0]
		patches = patches[1:]
		// {} can mean nothing but no thresholds, and an explicit false nothing but no
		// defaults; anything else may surprise its author.
		o.literal = o.merge == nil && len(main.entries) == 0 || o.merge != nil && !*o.merge
		if o.literal {
			ours = nil
		}
		if o.merge == nil || !*o.merge {
			theirs = nil
		}
		ours, theirs = main.apply(ours), main.apply(theirs)
	}
	for _, patch := range patches {
		ours, theirs = patch.apply(ours), patch.apply(theirs)
	}
	if ours == nil { // a drop-in deleted it
		o.literal = false
		ours = standard
	}
	o.values.EvictionHard, o.theirs.hard = ours, theirs
}

// read decodes one document.
func (o *overlay) read(doc document) {
	d := decoder{patch: doc.dropIn, yaml11: true}
	d.unknown = func(at string, key *yaml.Node) {
		o.remarks.add(slog.LevelWarn, doc.path, key.Line, "%s: unknown field, ignored", at)
	}
	d.mapping("", doc.root, func(key string) string { return key }, func(at string, key, value *yaml.Node) {
		field := fieldNamed(reflect.ValueOf(&o.values).Elem(), at)
		switch {
		case at == "apiVersion" || at == "kind":
		case !isKubeletField(at):
			d.unknown(at, key)
		case at == "evictionHard":
			o.readHard(&d, value)
		case field.IsValid() && d.patch && isNull(value):
			initial := unset()
			field.Set(fieldNamed(reflect.ValueOf(initial), at))
		case field.IsValid():
			d.value(at, value, field)
		case at == "mergeDefaultEvictionSettings" && !doc.dropIn: // a kubelet ignores it in a drop-in
			if !isNull(value) {
				o.merge = new(bool)
				d.value(at, value, reflect.ValueOf(o.merge).Elem())
			}
		default:
			o.ignored = append(o.ignored, at)
		}
	})
	for _, p := range d.problems {
		p.path = doc.path
		o.problems = append(o.problems, p)
	}
}

func (o *overlay) readHard(d *decoder, value *yaml.Node) {
	patch := hardPatch{dropIn: d.patch}
	if isNull(value) {
		if d.patch {
			o.hard = append(o.hard, patch)
		}
		return
	}
	patch.entries = map[string]*string{}
	d.texts("evictionHard", value, func(signal string, value *string) { patch.entries[signal] = value })
	o.hard = append(o.hard, patch)
}

// unset is a configuration in which no file has set anything: zero where a kubelet
// cannot tell that from unset, else the default.
func unset() file {
	f := defaults()
	f.NodeStatusUpdateFrequency, f.NodeStatusReportFrequency, f.NodeLeaseDurationSeconds = 0, 0, 0
	f.EvictionPressureTransitionPeriod, f.EnforceNodeAllocatable = 0, nil
	f.MaxPods, f.Port, f.ContainerRuntimeEndpoint = 0, 0, ""
	return f
}

// setDefaults is the opposite of unset.
func (f *file) setDefaults(standard *file) {
	f.NodeStatusUpdateFrequency = cmp.Or(f.NodeStatusUpdateFrequency, standard.NodeStatusUpdateFrequency)
	f.NodeStatusReportFrequency = cmp.Or(f.NodeStatusReportFrequency, standard.NodeStatusReportFrequency)
	f.NodeLeaseDurationSeconds = cmp.Or(f.NodeLeaseDurationSeconds, standard.NodeLeaseDurationSeconds)
	f.EvictionPressureTransitionPeriod = cmp.Or(f.EvictionPressureTransitionPeriod, standard.EvictionPressureTransitionPeriod)
	f.MaxPods = cmp.Or(f.MaxPods, standard.MaxPods)
	f.Port = cmp.Or(f.Port, standard.Port)
	f.ContainerRuntimeEndpoint = cmp.Or(f.ContainerRuntimeEndpoint, standard.ContainerRuntimeEndpoint)
	if f.EnforceNodeAllocatable == nil {
		f.EnforceNodeAllocatable = standard.EnforceNodeAllocatable
	}
}

// differences names the fields that are ignored, and where the files come to something
// else here than for a kubelet, unless our own file, which results in f, decides that.
func (o *overlay) differences(f *file, own *yaml.Node) Remarks {
	if len(o.documents) == 0 {
		return nil
	}
	var out Remarks
	first := o.documents[0].path // stands for all of them
	say := func(level slog.Level, field, format string, args ...any) {
		path, line := o.place(nil, field, "")
		out.add(level, cmp.Or(path, first), line, format, args...)
	}
	if len(o.ignored) > 0 {
		names := slices.Compact(slices.Sorted(slices.Values(o.ignored))) // all known ones, so that there is no need to cut
		out = append(out, Remark{slog.LevelInfo, first, 0, "ignored: " + strings.Join(names, ", ")})
	}
	if report := o.values.NodeStatusReportFrequency; report != o.theirs.report && !holds(own, "nodeStatusReportFrequency", "") {
		say(slog.LevelInfo, "nodeStatusUpdateFrequency", "nodeStatusReportFrequency: %v, where a kubelet would make it follow nodeStatusUpdateFrequency, to %v", report, o.theirs.report)
	}
	switch {
	case len(f.EvictionHard) == 0:
		say(slog.LevelWarn, "evictionHard", "evictionHard: no hard thresholds, as for a kubelet; leave it out for the defaults")
	case o.literal:
		say(slog.LevelInfo, "evictionHard", "evictionHard: no default is added, as for a kubelet")
	}
	var kept []string
	for _, signal := range slices.Sorted(maps.Keys(o.values.EvictionHard)) {
		value := o.values.EvictionHard[signal]
		if _, too := o.theirs.hard[signal]; too || holds(own, "evictionHard", signal) {
			continue
		}
		if signal == "pid.available" {
			say(slog.LevelInfo, "evictionHard", `evictionHard: pid.available has our default, %s, where a kubelet has none; "0%%" turns it off`, value)
			continue
		}
		kept = append(kept, signal+" "+value)
	}
	if len(kept) > 0 {
		say(slog.LevelInfo, "evictionHard", `evictionHard: these defaults stay, where a kubelet would not have them: %s; "0%%" turns one off`, strings.Join(kept, ", "))
	}
	return out
}

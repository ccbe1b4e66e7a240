package main

import (
	"cmp"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// kubeletRuntime is the kubelet's default for containerRuntimeEndpoint; ours is
// none.
const kubeletRuntime = "unix:///run/containerd/containerd.sock"

// decode puts the documents over the defaults, by the kubelet's rules and by
// ours. They differ in two of the kubelet's rules that surprise people: that
// nodeStatusReportFrequency follows nodeStatusUpdateFrequency, and that one
// threshold in evictionHard takes the other defaults away.
func (k *kubeletConfig) decode() {
	standard, another := defaults(), defaults() // two, as each has maps of its own
	// A node that had a kubelet has a runtime.
	standard.ContainerRuntimeEndpoint, another.ContainerRuntimeEndpoint = kubeletRuntime, kubeletRuntime
	delete(another.EvictionHard, "pid.available")
	ours, theirs := &k.config, &k.theirs
	*ours, *theirs = unset(&standard), unset(&another)
	dropIns := k.documents
	if len(dropIns) > 0 && !dropIns[0].dropIn {
		k.overlay(dropIns[0])
		dropIns = dropIns[1:]
		theirs.defaultHard(another.EvictionHard, k.merge != nil && *k.merge)
	}
	// {} can mean nothing but no thresholds, and an explicit false nothing but no
	// defaults; all else may be a kubelet's surprise.
	switch {
	case k.merge != nil:
		k.literal = ours.EvictionHard != nil && !*k.merge
	case ours.EvictionHard != nil:
		k.literal = len(ours.EvictionHard) == 0
	}
	ours.defaultHard(standard.EvictionHard, !k.literal)
	ours.fill(&standard, false)
	theirs.fill(&another, true)
	for _, doc := range dropIns {
		k.overlay(doc)
	}
	ours.fill(&standard, false)
	theirs.fill(&another, true)
	if ours.EvictionHard == nil { // a drop-in took it away
		k.literal = false
		ours.defaultHard(standard.EvictionHard, false)
	}
}

// path stands for all of the files.
func (k *kubeletConfig) path() string {
	if len(k.documents) == 0 {
		return ""
	}
	return k.documents[0].path
}

// overlay decodes one document into both configurations.
func (k *kubeletConfig) overlay(doc kubeletDocument) {
	d := decoder{patch: doc.dropIn, old: true}
	d.unknown = func(at string, key *yaml.Node) {
		k.remarks.add(slog.LevelWarn, doc.path, key.Line, "%s: unknown field, ignored", at)
	}
	ignore := func(at string) { k.ignored = append(k.ignored, at) }
	merge := &k.merge
	if doc.dropIn { // a kubelet does not look at it there
		merge = nil
	}
	d.kubelet(doc.root, &k.config, merge, ignore)
	for _, p := range d.problems {
		p.path = doc.path
		k.problems = append(k.problems, p)
	}
	again := decoder{patch: doc.dropIn, old: true, unknown: func(string, *yaml.Node) {}}
	again.kubelet(doc.root, &k.theirs, nil, func(string) {})
}

// kubelet decodes one document over c, and mergeDefaultEvictionSettings into
// merge unless that is nil.
func (d *decoder) kubelet(root *yaml.Node, c *config, merge **bool, ignore func(at string)) {
	d.mapping("", root, func(key string) string { return key }, func(at string, key, value *yaml.Node) {
		field := fieldNamed(reflect.ValueOf(c).Elem(), at)
		switch {
		case at == "apiVersion" || at == "kind":
		case !isKubeletField(at):
			d.unknown(at, key)
		case field.IsValid() && d.patch && isNull(value):
			standard := defaults()
			initial := unset(&standard)
			field.Set(fieldNamed(reflect.ValueOf(initial), at))
		case field.IsValid():
			d.value(at, value, field)
		case at == "mergeDefaultEvictionSettings" && merge != nil:
			if !isNull(value) {
				*merge = new(bool)
				d.value(at, value, reflect.ValueOf(*merge).Elem())
			}
		default:
			ignore(at)
		}
	})
}

// zeroIsSet says whether a kubelet can tell zero from what no file has set.
func zeroIsSet(field reflect.StructField) bool {
	return field.Type.Kind() == reflect.Bool || field.Name == "NodeStatusMaxImages"
}

// unset is a configuration in which no file has set anything.
func unset(standard *config) config {
	var c config
	to, from := reflect.ValueOf(&c).Elem(), reflect.ValueOf(standard).Elem()
	for i := range to.NumField() {
		if zeroIsSet(to.Type().Field(i)) {
			to.Field(i).Set(from.Field(i))
		}
	}
	return c
}

// fill sets what is unset to its default, except evictionHard. With follow,
// nodeStatusReportFrequency is nodeStatusUpdateFrequency where only that is set.
func (c *config) fill(standard *config, follow bool) {
	if follow && c.NodeStatusReportFrequency == 0 {
		c.NodeStatusReportFrequency = c.NodeStatusUpdateFrequency
	}
	to, from := reflect.ValueOf(c).Elem(), reflect.ValueOf(standard).Elem()
	for i := range to.NumField() {
		if field := to.Type().Field(i); to.Field(i).IsZero() && !zeroIsSet(field) && field.Name != "EvictionHard" {
			to.Field(i).Set(from.Field(i))
		}
	}
}

// defaultHard sets evictionHard to the default if it is unset. With merge, it
// gets the default's entries that it does not have.
func (c *config) defaultHard(standard map[string]string, merge bool) {
	if c.EvictionHard != nil && !merge {
		return
	}
	merged := maps.Clone(standard)
	maps.Copy(merged, c.EvictionHard)
	c.EvictionHard = merged
}

// differences says which fields are ignored, and where the files come to something
// else here than they would for a kubelet, unless our own file decides that.
func (k *kubeletConfig) differences(c *config, own *yaml.Node) remarks {
	if len(k.documents) == 0 {
		return nil
	}
	var out remarks
	say := func(level slog.Level, field, format string, args ...any) {
		path, line := k.place(nil, field, "")
		out.add(level, cmp.Or(path, k.path()), line, format, args...)
	}
	if len(k.ignored) > 0 {
		names := slices.Compact(slices.Sorted(slices.Values(k.ignored))) // all known ones, so that there is no need to cut
		out = append(out, remark{slog.LevelInfo, k.path(), 0, "ignored: " + strings.Join(names, ", ")})
	}
	report, theirs := k.config.NodeStatusReportFrequency, k.theirs.NodeStatusReportFrequency
	if report != theirs && !holds(own, "nodeStatusReportFrequency", "") {
		say(slog.LevelInfo, "nodeStatusUpdateFrequency", "nodeStatusReportFrequency: %v, where a kubelet would make it follow nodeStatusUpdateFrequency, to %v", report, theirs)
	}
	switch {
	case len(c.EvictionHard) == 0:
		say(slog.LevelWarn, "evictionHard", "evictionHard: no hard thresholds, as for a kubelet; leave it out for the defaults")
	case k.literal:
		say(slog.LevelInfo, "evictionHard", "evictionHard: no default is added, as for a kubelet")
	}
	var kept []string
	for _, signal := range slices.Sorted(maps.Keys(k.config.EvictionHard)) {
		value := k.config.EvictionHard[signal]
		if _, too := k.theirs.EvictionHard[signal]; too || holds(own, "evictionHard", signal) {
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

package config

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/nodeprobe/nodeprobe/internal/printable"
)

// decodeStrictly reads a YAML document over f: what it does not mention, or leaves
// empty, keeps its value, and maps are merged. It returns the document, or nil if
// there is none that could be looked at, and everything that is wrong.
//
// The library's own decoder is not used, since its errors do not name fields.
func decodeStrictly(data []byte, f *file) (root *yaml.Node, problems []problem) {
	root, bad := parseDocument(data)
	if bad != nil {
		return nil, []problem{*bad}
	}
	return root, decodeRoot(root, f)
}

func decodeRoot(root *yaml.Node, f *file) []problem {
	var d decoder
	d.structure("", root, reflect.ValueOf(f).Elem())
	return d.problems
}

// decoder collects what is wrong. Its methods get the name of the field that they
// decode.
type decoder struct {
	problems []problem
	// unknown is called for a field that the target does not have, which is a
	// problem if there is no such function.
	unknown func(at string, key *yaml.Node)
	// patch makes the document a JSON merge patch: an entry without a value deletes
	// the one that was there.
	patch bool
	// yaml11 is what a kubelet reads: it has more words for true and false, and
	// octal numbers.
	yaml11 bool
}

// yaml11Booleans are those words.
var yaml11Booleans = map[string]bool{
	"y": true, "Y": true, "yes": true, "Yes": true, "YES": true, "on": true, "On": true, "ON": true,
	"n": false, "N": false, "no": false, "No": false, "NO": false, "off": false, "Off": false, "OFF": false,
}

func (d *decoder) fail(at string, n *yaml.Node, format string, args ...any) {
	d.problems = append(d.problems, problem{field: at, line: n.Line, err: fmt.Errorf(format, args...)})
}

// structure decodes a mapping into a struct.
func (d *decoder) structure(at string, n *yaml.Node, target reflect.Value) {
	name := func(key string) string { return strings.TrimPrefix(at+"."+key, ".") }
	d.mapping(at, n, name, func(at string, key, value *yaml.Node) {
		if field := fieldNamed(target, key.Value); field.IsValid() {
			d.value(at, value, field)
			return
		}
		if d.unknown != nil {
			d.unknown(at, key)
			return
		}
		if empty := emptyAbove(n, key); empty != nil {
			d.fail(at, key, "unknown field; if it belongs to %s in line %d, which has no value, indent it further", empty.Value, empty.Line)
			return
		}
		d.fail(at, key, "unknown field")
	})
}

// emptyAbove returns the nearest entry above key if it and those between have no
// value: they may all have been meant to be its fields.
func emptyAbove(mapping, key *yaml.Node) (empty *yaml.Node) {
	for i := 0; i+1 < len(mapping.Content) && mapping.Content[i] != key; i += 2 {
		empty = nil
		if isNull(mapping.Content[i+1]) {
			empty = mapping.Content[i]
		}
	}
	return empty
}

// fieldNamed returns the field of a struct that a file spells so, or the zero Value.
func fieldNamed(in reflect.Value, name string) reflect.Value {
	for i := range in.NumField() {
		if in.Type().Field(i).Tag.Get("yaml") == name {
			return in.Field(i)
		}
	}
	return reflect.Value{}
}

// mapping calls entry for each entry of a mapping, with its name.
func (d *decoder) mapping(at string, n *yaml.Node, name func(key string) string, entry func(at string, key, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		d.fail(at, n, "%s is not a mapping", show(n))
		return
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" {
			d.fail(at, key, "%s is not the name of an entry", show(key))
			continue
		}
		here := name(key.Value)
		if line, twice := lines[key.Value]; twice {
			d.fail(here, key, "is set in line %d already", line)
			continue
		}
		lines[key.Value] = key.Line
		entry(here, key, n.Content[i+1])
	}
}

// texts calls entry for each entry of a mapping to texts; value is nil for one that a
// patch deletes.
func (d *decoder) texts(at string, n *yaml.Node, entry func(key string, value *string)) {
	name := func(key string) string { return at + "[" + key + "]" }
	d.mapping(at, resolveAlias(n), name, func(at string, key, value *yaml.Node) {
		if d.patch && isNull(value) {
			entry(key.Value, nil)
			return
		}
		var text string
		d.value(at, value, reflect.ValueOf(&text).Elem())
		entry(key.Value, &text)
	})
}

// value decodes a node into a field. An empty one leaves the default: the keys below
// it may all have been commented out, and without thresholds no condition would ever
// be True.
func (d *decoder) value(at string, n *yaml.Node, target reflect.Value) {
	if isNull(n) {
		return
	}
	n = resolveAlias(n)
	switch to := target.Addr().Interface().(type) {
	case *map[string]string:
		if *to == nil {
			*to = map[string]string{}
		}
		d.texts(at, n, func(key string, value *string) {
			if value == nil {
				delete(*to, key)
				return
			}
			(*to)[key] = *value
		})
	case *time.Duration:
		duration, err := time.ParseDuration(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil {
			d.fail(at, n, "%s is not a duration such as 10s or 1m30s", show(n))
			return
		}
		*to = duration
	case *bool:
		if value, known := yaml11Booleans[n.Value]; known && d.yaml11 && n.Kind == yaml.ScalarNode && n.Style == 0 {
			*to = value
			return
		}
		if n.ShortTag() != "!!bool" || n.Decode(to) != nil {
			d.fail(at, n, "%s is not true or false", show(n))
		}
	case *string:
		if n.Kind != yaml.ScalarNode {
			d.fail(at, n, "%s is not a text", show(n))
			return
		}
		*to = n.Value
	default:
		d.compound(at, n, target)
	}
}

// compound decodes what differs in more than its type.
func (d *decoder) compound(at string, n *yaml.Node, target reflect.Value) {
	switch target.Kind() {
	case reflect.Int32, reflect.Int64:
		base := 10
		if d.yaml11 {
			base = 0 // by its prefix
		}
		number, err := strconv.ParseInt(n.Value, base, target.Type().Bits())
		switch {
		case n.ShortTag() != "!!int" || err != nil && !errors.Is(err, strconv.ErrRange):
			d.fail(at, n, "%s is not a whole number", show(n))
		case err != nil:
			d.fail(at, n, "%s is out of range", show(n))
		default:
			target.SetInt(number)
		}
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.fail(at, n, "%s is not a list", show(n))
			return
		}
		target.Set(reflect.MakeSlice(target.Type(), len(n.Content), len(n.Content)))
		for i, element := range n.Content {
			d.value(fmt.Sprintf("%s[%d]", at, i), element, target.Index(i))
		}
	case reflect.Struct:
		d.structure(at, n, target)
	case reflect.Map: // of structs: what an entry does not mention keeps its value
		if target.IsNil() {
			target.Set(reflect.MakeMap(target.Type()))
		}
		name := func(key string) string { return at + "[" + key + "]" }
		d.mapping(at, n, name, func(at string, key, value *yaml.Node) {
			entry := reflect.New(target.Type().Elem()).Elem()
			if known := target.MapIndex(reflect.ValueOf(key.Value)); known.IsValid() {
				entry.Set(known)
			}
			d.value(at, value, entry)
			target.SetMapIndex(reflect.ValueOf(key.Value), entry)
		})
	default:
		panic("config: cannot decode " + target.Type().String())
	}
}

func resolveAlias(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// isNull reports whether a node has no value.
func isNull(n *yaml.Node) bool { return resolveAlias(n).ShortTag() == "!!null" }

// show names a value in a message.
func show(n *yaml.Node) string {
	switch n.Kind {
	case yaml.ScalarNode:
		return strconv.Quote(printable.Line(n.Value, 60))
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a mapping"
	default:
		return "an alias"
	}
}

// lineOf returns the line of a field, or of an entry in it, or 0 if the document does
// not have it.
func lineOf(root *yaml.Node, field, key string) int {
	name, value := entry(root, field)
	if name == nil {
		return 0
	}
	value = resolveAlias(value)
	switch i, err := strconv.Atoi(key); {
	case value.Kind == yaml.MappingNode:
		if k, _ := entry(value, key); k != nil {
			return k.Line
		}
	case value.Kind == yaml.SequenceNode && err == nil && i < len(value.Content):
		return value.Content[i].Line
	}
	return name.Line
}

// holds reports whether a document has the field, and if that is a mapping, the entry
// in it; "" is any entry.
func holds(root *yaml.Node, field, key string) bool {
	_, value := entry(root, field)
	if value == nil {
		return false
	}
	value = resolveAlias(value)
	if key == "" || value.Kind != yaml.MappingNode {
		return true
	}
	in, _ := entry(value, key)
	return in != nil
}

// entry returns the entry of a mapping that has the name. The mapping may be nil.
func entry(mapping *yaml.Node, name string) (key, value *yaml.Node) {
	if mapping == nil {
		return nil, nil
	}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			return mapping.Content[i], mapping.Content[i+1]
		}
	}
	return nil, nil
}

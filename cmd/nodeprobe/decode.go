package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// decodeStrictly reads a YAML document over c: what it does not mention, or
// leaves empty, keeps its value, and maps are merged. It returns the document,
// or nil if there is none that could be looked at, and everything that is wrong.
//
// The library's own decoder is not used, since its errors do not name fields.
func decodeStrictly(data []byte, c *config) (root *yaml.Node, problems []problem) {
	root, bad := parseDocument(data)
	if bad != nil {
		return nil, []problem{*bad}
	}
	var d decoder
	d.structure("", root, reflect.ValueOf(c).Elem())
	return root, d.problems
}

// parseDocument returns the mapping that the one document of data consists of.
func parseDocument(data []byte) (*yaml.Node, *problem) {
	whole := func(line int, format string, args ...any) (*yaml.Node, *problem) {
		return nil, &problem{line: line, err: fmt.Errorf(format, args...)}
	}
	if line, what := notText(data); what != "" {
		return whole(line, "%s", what)
	}
	documents, err := parseYAML(data)
	if err != nil {
		line, text := findSyntaxError(data, err)
		return whole(line, "%s", text)
	}
	if len(documents) == 0 || documents[0].Content[0].ShortTag() == "!!null" {
		return whole(1, "the file is empty; it needs apiVersion and kind")
	}
	if len(documents) > 1 {
		return whole(documents[1].Line, "a second document; the file must hold one")
	}
	root := documents[0].Content[0]
	if root.Kind != yaml.MappingNode {
		return whole(root.Line, "%s is not a mapping of fields to values", show(root))
	}
	return root, nil
}

// parseYAML returns the first documents of data, two at most.
func parseYAML(data []byte) ([]*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var documents []*yaml.Node
	for len(documents) < 2 {
		var document yaml.Node
		if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		documents = append(documents, &document)
	}
	return documents, nil
}

// notText finds what no text has. The YAML library ends at a NUL, and would
// ignore what follows; for the rest it does not say where it is.
func notText(data []byte) (line int, what string) {
	line = 1
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return line, "not UTF-8 text"
		case r == '\n':
			line++
		case r < ' ' && r != '\t' && r != '\r':
			return line, fmt.Sprintf("a control character, %U", r)
		}
		i += size
	}
	return 0, ""
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// findSyntaxError takes the library's error apart. The line in it may be off by
// one, that of the enclosing mapping, or missing; so the error is put where the
// text has to end for it to occur.
func findSyntaxError(data []byte, err error) (line int, text string) {
	const mostBytes = 32 << 10 // each line costs another parse
	match := yamlLine.FindStringSubmatch(err.Error())
	text = strings.TrimPrefix(err.Error(), match[0])
	end := 0
	for part := range bytes.Lines(data[:min(len(data), mostBytes)]) {
		line++
		end += len(part)
		if _, err := parseYAML(data[:end]); err != nil && yamlLine.ReplaceAllString(err.Error(), "") == text {
			return line, text
		}
	}
	line, _ = strconv.Atoi(match[1]) // digits, or none
	return line, text
}

// decoder collects what is wrong. Its methods get the name of the field that
// they decode.
type decoder struct {
	problems []problem
	// unknown is called for a field that the target does not have, which is a
	// problem if there is no such function.
	unknown func(at string, key *yaml.Node)
	// patch makes the document a JSON merge patch: an entry without a value takes
	// away the one that was there.
	patch bool
	// old is for YAML 1.1, which a kubelet reads: it has more words for true and
	// false, and octal numbers.
	old bool
}

// oldBooleans are those words.
var oldBooleans = map[string]bool{
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
		if d.unknown == nil {
			d.fail(at, key, "unknown field")
			return
		}
		d.unknown(at, key)
	})
}

// fieldNamed returns the field of a struct that a file spells so, or the zero
// Value.
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

// value decodes a node into a field. An empty one leaves the default: the keys
// below it may all have been commented out, and without thresholds there would
// be no pressure ever.
func (d *decoder) value(at string, n *yaml.Node, target reflect.Value) {
	if isNull(n) {
		return
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch to := target.Addr().Interface().(type) {
	case *map[string]string:
		if *to == nil {
			*to = map[string]string{}
		}
		name := func(key string) string { return at + "[" + key + "]" }
		d.mapping(at, n, name, func(at string, key, value *yaml.Node) {
			if d.patch && isNull(value) {
				delete(*to, key.Value)
				return
			}
			var text string
			d.value(at, value, reflect.ValueOf(&text).Elem())
			(*to)[key.Value] = text
		})
	case *time.Duration:
		duration, err := time.ParseDuration(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil {
			d.fail(at, n, "%s is not a duration such as 10s or 1m30s", show(n))
			return
		}
		*to = duration
	case *bool:
		if value, known := oldBooleans[n.Value]; known && d.old && n.Kind == yaml.ScalarNode && n.Style == 0 {
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
		if d.old {
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

// isNull says whether there is no value.
func isNull(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n.ShortTag() == "!!null"
}

// show names a value in a message.
func show(n *yaml.Node) string {
	switch n.Kind {
	case yaml.ScalarNode:
		return strconv.Quote(oneLine(n.Value, 60))
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a mapping"
	default:
		return "an alias"
	}
}

// lineOf returns the line of a field, or of an entry in it, or 0 if the document
// does not have it.
func lineOf(root *yaml.Node, field, key string) int {
	if root == nil {
		return 0
	}
	name, value := entry(root, field)
	if name == nil {
		return 0
	}
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
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

// holds says whether a document has the field, and if it is a mapping, the entry
// in it; "" is any entry.
func holds(root *yaml.Node, field, key string) bool {
	if root == nil {
		return false
	}
	_, value := entry(root, field)
	if value != nil && value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	if value == nil || key == "" || value.Kind != yaml.MappingNode {
		return value != nil
	}
	in, _ := entry(value, key)
	return in != nil
}

// entry returns the entry of a mapping that has the name.
func entry(mapping *yaml.Node, name string) (key, value *yaml.Node) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			return mapping.Content[i], mapping.Content[i+1]
		}
	}
	return nil, nil
}

package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/nodeprobe/nodeprobe/internal/printable"
)

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
		return whole(line, "%s", text+explainIndentation(data, line))
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

// notText finds what no text has. The YAML library stops at a NUL and ignores what
// follows; for the rest it does not return the line.
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

// findSyntaxError returns the line and the text of a syntax error. The line in the
// library's error may be off by one, that of the enclosing mapping, or missing; so
// the error is put where the text has to end for it to occur.
func findSyntaxError(data []byte, err error) (line int, text string) {
	const maxBytes = 32 << 10 // each line costs another parse
	match := yamlLine.FindStringSubmatch(err.Error())
	text = strings.TrimPrefix(err.Error(), match[0])
	end := 0
	for part := range bytes.Lines(data[:min(len(data), maxBytes)]) {
		line++
		end += len(part)
		if _, err := parseYAML(data[:end]); err != nil && yamlLine.ReplaceAllString(err.Error(), "") == text {
			return line, text
		}
	}
	line, _ = strconv.Atoi(match[1]) // digits, or none
	return line, text
}

// entryLine is a line with an entry of a mapping, which may be the first in an item of a
// list: what stands before its name, the name, and the value on the same line.
var entryLine = regexp.MustCompile(`^( *(?:- +)?)([^\s#:'"{}\[\],&*!|>%@-][^\s:]*):(?:\s+([^\s#].*))?`)

// explainIndentation returns what a syntax error in a line may come from, or "": the
// library's text is about its grammar.
func explainIndentation(data []byte, line int) string {
	lines := strings.Split(strings.ReplaceAll(string(data), "\r", ""), "\n")
	if line < 1 || line > len(lines) {
		return ""
	}
	wrong := lines[line-1]
	if indent := wrong[:len(wrong)-len(strings.TrimLeft(wrong, " \t"))]; strings.Contains(indent, "\t") {
		return ": the line is indented with a tab; use spaces"
	}
	here := entryLine.FindStringSubmatch(wrong)
	if here == nil {
		return ""
	}
	name, column := printable.Line(here[2], 60), len(here[1])
	nearest := true
	for i := line - 2; i >= 0; i-- {
		above := entryLine.FindStringSubmatch(lines[i])
		if above == nil {
			continue
		}
		switch {
		case nearest && column > len(above[1]) && isPlain(above[3]):
			return fmt.Sprintf(": %s is indented further than %s in line %d, which has a value and can have no fields", name, printable.Line(above[2], 60), i+1)
		case column == len(above[1]), nearest && column > len(above[1]):
			return ""
		case column > len(above[1]):
			return outdented(name, column)
		}
		nearest = false
	}
	if nearest {
		return ""
	}
	return outdented(name, column)
}

func outdented(name string, column int) string {
	return fmt.Sprintf(": no field above %s begins in the same column, %d", name, column+1)
}

// isPlain reports whether a value ends where its line does.
func isPlain(value string) bool {
	return value != "" && !strings.ContainsRune("{[|>&*!\"'", rune(value[0]))
}

package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/nodeprobe/nodeprobe/internal/printable"
)

// What is wrong may be a huge value, or all of a huge file.
const (
	maxRunes    = 600
	maxProblems = 50
)

// problem is one thing that is wrong with a configuration.
type problem struct {
	field string // "" for the whole file
	key   string // of an entry of that map, or index in that list, or ""
	err   error
	path  string // of a kubelet's file; "" for our own
	line  int    // 0 if the file does not have the field
	flag  string // the flag that set the field, or ""
}

// name is how the field is spelled in messages.
func (p problem) name() string {
	if p.key == "" {
		return p.field
	}
	return p.field + "[" + p.key + "]"
}

// within reports whether p is about the same field as other, or a part of it.
func (p problem) within(other problem) bool {
	return p.path == other.path && (p.field == other.name() || strings.HasPrefix(p.field, other.name()+"."))
}

// text formats the problem as one line; path is that of our own file.
func (p problem) text(path string) string {
	place := cmp.Or(p.path, path)
	switch {
	case p.flag != "":
		place = "--" + p.flag
	case p.line > 0:
		place = fmt.Sprintf("%s:%d", place, p.line)
	}
	text := p.err.Error()
	if name := p.name(); name != "" {
		text = name + ": " + text
	}
	return place + ": " + printable.Line(text, maxRunes)
}

// join makes one error of all problems, a line each, in the order of the files: a
// kubelet's first, then our own, at path.
func join(path string, documents []document, problems []problem) error {
	order := map[string]int{"": len(documents)}
	for i, doc := range documents {
		order[doc.path] = i
	}
	slices.SortStableFunc(problems, func(a, b problem) int {
		return cmp.Or(cmp.Compare(order[a.path], order[b.path]), cmp.Compare(a.line, b.line))
	})
	var errs []error
	for i, p := range problems {
		if i == maxProblems {
			errs = append(errs, fmt.Errorf("%s: %d more problems", path, len(problems)-i))
			break
		}
		errs = append(errs, errors.New(p.text(path)))
	}
	return errors.Join(errs...)
}

// Remark is about something in a file that is no error.
type Remark struct {
	Level slog.Level // Info or Warn
	Path  string
	Line  int // 0 for the whole file
	Text  string
}

// String returns "file:line: text".
func (r Remark) String() string { return r.place() + ": " + r.Text }

func (r Remark) place() string {
	if r.Line == 0 {
		return r.Path
	}
	return fmt.Sprintf("%s:%d", r.Path, r.Line)
}

// Remarks are in the order in which the files are read.
type Remarks []Remark

// add leaves out what would be too much: a file may hold anything.
func (r *Remarks) add(level slog.Level, path string, line int, format string, args ...any) {
	text := printable.Line(fmt.Sprintf(format, args...), maxRunes)
	switch {
	case len(*r) > maxProblems:
		return
	case len(*r) == maxProblems:
		text = "and so on"
	}
	*r = append(*r, Remark{level, path, line, text})
}

// Print writes a line for each remark, "file:line: note: text" or "warning".
func (r Remarks) Print(w io.Writer) error {
	for _, remark := range r {
		kind := "note"
		if remark.Level == slog.LevelWarn {
			kind = "warning"
		}
		if _, err := fmt.Fprintf(w, "%s: %s: %s\n", remark.place(), kind, remark.Text); err != nil {
			return err
		}
	}
	return nil
}

// Warnings returns the remarks of level Warn.
func (r Remarks) Warnings() Remarks {
	return slices.DeleteFunc(slices.Clone(r), func(remark Remark) bool { return remark.Level != slog.LevelWarn })
}

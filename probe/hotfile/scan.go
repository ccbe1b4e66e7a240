package hotfile

import (
	"bytes"
	"errors"
	"fmt"
	"math"
)

// These functions scan bytes by hand: strconv and strings would copy, and a sample
// must not allocate.

// What can be wrong with a file.
var (
	ErrNumber   = errors.New("not a number")
	ErrNegative = errors.New("negative value")
	ErrRange    = errors.New("number out of range")
	ErrZero     = errors.New("impossible 0")
	ErrEmpty    = errors.New("empty file")
	ErrCut      = errors.New("cut off before its end")

	errUnit = errors.New("not in kB")
)

var newline = []byte{'\n'}

// NextLine cuts the first line off b, without its newline. Whole is false if there was
// no newline: the kernel always writes one, so such a line has lost its end, and a
// number in it may have lost digits.
func NextLine(b []byte) (line, rest []byte, whole bool) {
	return bytes.Cut(b, newline)
}

// NextField cuts the first field off b: blanks and tabs separate fields.
func NextField(b []byte) (field, rest []byte) {
	i := 0
	for i < len(b) && (b[i] == ' ' || b[i] == '\t') {
		i++
	}
	j := i
	for j < len(b) && b[j] != ' ' && b[j] != '\t' {
		j++
	}
	return b[i:j], b[j:]
}

// ParseUint reads a decimal number that fills b and fits in an int64.
func ParseUint(b []byte) (int64, error) {
	if len(b) == 0 {
		return 0, ErrNumber
	}
	if b[0] == '-' {
		return 0, ErrNegative
	}
	var n uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, ErrNumber
		}
		if n > math.MaxInt64/10 {
			return 0, ErrRange
		}
		n = n*10 + uint64(c-'0')
	}
	if n > math.MaxInt64 {
		return 0, ErrRange
	}
	return int64(n), nil
}

// LineError adds to err the line that it is about, or as much of it as fits in a log.
func LineError(line []byte, err error) error {
	const longest = 60
	if len(line) > longest {
		return fmt.Errorf("line %q…: %w", line[:longest], err)
	}
	return fmt.Errorf("line %q: %w", line, err)
}

// Key is a wanted line of a file of "key value" lines, such as meminfo, vmstat and
// memory.stat.
type Key struct {
	Name  string
	Value *int64 // where ParseTable stores it
	KiB   bool   // the file has the unit "kB" after the value, and Value is in bytes
}

func (k *Key) parse(b []byte) (int64, error) {
	field, rest := NextField(b)
	n, err := ParseUint(field)
	if err != nil || !k.KiB {
		return n, err
	}
	if unit, _ := NextField(rest); string(unit) != "kB" {
		return 0, errUnit
	}
	if n > math.MaxInt64/1024 {
		return 0, ErrRange
	}
	return n * 1024, nil
}

// ParseTable stores the values of keys. Other lines are ignored: each kernel adds
// some. It returns an error if a wanted line is malformed or missing.
//
// It searches for the names and does not look at every line, as these files have up
// to 200 lines of which one to five are wanted.
func ParseTable(b []byte, keys []Key) error {
	if len(b) == 0 {
		return ErrEmpty
	}
	for i := range keys {
		k := &keys[i]
		at := indexLine(b, k.Name)
		if at < 0 {
			return fmt.Errorf("no line %q", k.Name)
		}
		line, _, whole := NextLine(b[at:])
		v, err := k.parse(line[len(k.Name)+1:])
		if err == nil && !whole {
			err = ErrCut
		}
		if err != nil {
			return LineError(line, err)
		}
		*k.Value = v
	}
	return nil
}

// indexLine returns where the first line begins that has name followed by a blank, a
// tab or a colon; -1 if there is none.
func indexLine(b []byte, name string) int {
	for at := 0; ; at++ {
		i := bytes.Index(b[at:], []byte(name))
		if i < 0 {
			return -1
		}
		at += i
		end := at + len(name)
		if end < len(b) && (b[end] == ':' || b[end] == ' ' || b[end] == '\t') && (at == 0 || b[at-1] == '\n') {
			return at
		}
	}
}

// ParseNumber returns the number that is the only content of a file.
func ParseNumber(b []byte) (int64, error) {
	if len(b) == 0 {
		return 0, ErrEmpty
	}
	line, _, whole := NextLine(b)
	field, _ := NextField(line)
	n, err := ParseUint(field)
	if err == nil && !whole {
		err = ErrCut
	}
	if err != nil {
		return 0, LineError(line, err)
	}
	return n, nil
}

package probe

import (
	"bytes"
	"errors"
	"fmt"
	"math"
)

// The readers of this package scan bytes by hand: strconv and strings would
// copy, and a sample must not allocate.

var (
	errNumber   = errors.New("not a number")
	errNegative = errors.New("negative value")
	errRange    = errors.New("number out of range")
	errEmpty    = errors.New("empty file")
	errCut      = errors.New("cut off before its end")
	errUnit     = errors.New("not in kB")
	errZero     = errors.New("impossible 0")
)

var newline = []byte{'\n'}

// nextLine cuts the first line off b, without its newline. Whole is false where
// there was no newline: the kernel always writes one, so such a line has lost
// its end, and a number in it may have lost digits.
func nextLine(b []byte) (line, rest []byte, whole bool) {
	return bytes.Cut(b, newline)
}

// nextField cuts the first field off b: blanks and tabs separate fields.
func nextField(b []byte) (field, rest []byte) {
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

// parseUint reads a decimal number that fills b and fits in an int64.
func parseUint(b []byte) (int64, error) {
	if len(b) == 0 {
		return 0, errNumber
	}
	if b[0] == '-' {
		return 0, errNegative
	}
	var n uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, errNumber
		}
		if n > math.MaxInt64/10 {
			return 0, errRange
		}
		n = n*10 + uint64(c-'0')
	}
	if n > math.MaxInt64 {
		return 0, errRange
	}
	return int64(n), nil
}

// parsePercent reads a number such as "12.34", in hundredths of a whole, and
// returns it as a share of 1, as exact as a float64 can be.
func parsePercent(b []byte) (float64, error) {
	whole, frac, _ := bytes.Cut(b, []byte{'.'})
	w, err := parseUint(whole)
	if err != nil {
		return 0, err
	}
	if w > 100 || len(frac) > 9 {
		return 0, errRange
	}
	digits, scale := w, int64(1)
	for _, c := range frac {
		if c < '0' || c > '9' {
			return 0, errNumber
		}
		digits, scale = digits*10+int64(c-'0'), scale*10
	}
	return float64(digits) / float64(scale*100), nil
}

// lineError says which line is wrong, and shows as much of it as a log can
// bear.
func lineError(line []byte, err error) error {
	const most = 60
	if len(line) > most {
		return fmt.Errorf("line %q…: %w", line[:most], err)
	}
	return fmt.Errorf("line %q: %w", line, err)
}

// tableKey is a wanted line of a file of "key value" lines: the shape of
// meminfo, vmstat and memory.stat.
type tableKey struct {
	name  string
	value *int64
	kib   bool // the value is followed by "kB" and is wanted in bytes
}

func (k *tableKey) parse(b []byte) (int64, error) {
	field, rest := nextField(b)
	n, err := parseUint(field)
	if err != nil || !k.kib {
		return n, err
	}
	if unit, _ := nextField(rest); string(unit) != "kB" {
		return 0, errUnit
	}
	if n > math.MaxInt64/1024 {
		return 0, errRange
	}
	return n * 1024, nil
}

// parseTable fills in the values of keys. Other lines are ignored: each kernel
// adds some. A wanted line that is malformed or missing fails.
//
// It looks for the names rather than at every line, as these files have up to
// 200 lines of which one to five are wanted.
func parseTable(b []byte, keys []tableKey) error {
	if len(b) == 0 {
		return errEmpty
	}
	for i := range keys {
		k := &keys[i]
		at := indexLine(b, k.name)
		if at < 0 {
			return fmt.Errorf("no line %q", k.name)
		}
		line, _, whole := nextLine(b[at:])
		v, err := k.parse(line[len(k.name)+1:])
		if err == nil && !whole {
			err = errCut
		}
		if err != nil {
			return lineError(line, err)
		}
		*k.value = v
	}
	return nil
}

// indexLine returns where the first line begins that holds name and then a blank
// or a colon, or -1.
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

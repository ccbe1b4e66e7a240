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
)

// nextLine cuts the first line off b, without its newline. Whole is false where
// there was no newline: the kernel always writes one, so such a line has lost
// its end, and a number in it may have lost digits.
func nextLine(b []byte) (line, rest []byte, whole bool) {
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		return b[:i], b[i+1:], true
	}
	return b, nil, false
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
// returns it as a share of 1.
func parsePercent(b []byte) (float64, error) {
	whole, frac, _ := bytes.Cut(b, []byte{'.'})
	w, err := parseUint(whole)
	if err != nil {
		return 0, err
	}
	var f int64
	scale := 1.0
	if len(frac) > 0 {
		if len(frac) > 9 {
			return 0, errRange
		}
		if f, err = parseUint(frac); err != nil {
			return 0, err
		}
		for range frac {
			scale *= 10
		}
	}
	v := (float64(w) + float64(f)/scale) / 100
	if v > 1.01 { // the kernel's rounding may show 100.xx
		return 0, errRange
	}
	return v, nil
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

// parseTable fills in the values of keys. Unknown lines are ignored: each
// kernel adds some. A wanted line that is malformed or missing fails.
func parseTable(b []byte, keys []tableKey) error {
	if len(b) == 0 {
		return errEmpty
	}
	var seen uint32
	want := uint32(1)<<len(keys) - 1
	for len(b) > 0 && seen != want {
		line, after, whole := nextLine(b)
		b = after
		name, rest := nextField(line)
		if n := len(name); n > 0 && name[n-1] == ':' {
			name = name[:n-1]
		}
		for i := range keys {
			k := &keys[i]
			if string(name) != k.name || seen&(1<<i) != 0 {
				continue
			}
			v, err := k.parse(rest)
			if err == nil && !whole {
				err = errCut
			}
			if err != nil {
				return lineError(line, err)
			}
			*k.value = v
			seen |= 1 << i
			break
		}
	}
	for i := range keys {
		if seen&(1<<i) == 0 {
			return fmt.Errorf("no line %q", keys[i].name)
		}
	}
	return nil
}

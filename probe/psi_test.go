package probe

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

func TestParseStall(t *testing.T) {
	const some = "some avg10=0.00 avg60=0.10 avg300=2.35 total=184412\n"
	line := StallLine{Avg60: 0.001, Avg300: 0.0235, Total: 184412 * time.Microsecond}
	full := strings.Replace(some, "some", "full", 1)
	for _, test := range []struct {
		name, text string
		want       Stall
		err        error
		says       string
	}{
		{name: "both", text: some + full, want: Stall{Some: line, Full: line, OK: true, FullOK: true}},
		{name: "cpu before Linux 5.13", text: some, want: Stall{Some: line, OK: true}},
		{name: "in any order", text: full + "some total=184412 avg300=2.35 avg60=0.10 avg10=0.00\n", want: Stall{Some: line, Full: line, OK: true, FullOK: true}},
		{name: "lines and fields to come", text: "irq x=y\n" + strings.Replace(some, " total", " avg600=z p99 total", 1), want: Stall{Some: line, OK: true}},
		{name: "all the time", text: "some avg10=100.00 avg60=100.00 avg300=99.99 total=9223372036854775\n", want: Stall{
			Some: StallLine{Avg10: 1, Avg60: 1, Avg300: 0.9999, Total: math.MaxInt64 / 1000 * 1000}, OK: true,
		}},

		{name: "irq: no some", text: full, err: errNoSome},
		{name: "cut in a line that nobody wants", text: some + "ful", err: errCut, says: `line "ful"`},
		{name: "cut in full", text: some + full[:30], err: errCut, says: `line "full avg10=0`},
		{name: "field missing", text: "some avg10=0.00 avg60=0.10 total=1\n", err: errField, says: `line "some avg10=0.00 avg60=0.10 total=1"`},
		{name: "field twice and another missing", text: "some avg10=0.00 avg10=0.00 avg60=0.10 total=1\n", err: errField},
		{name: "no fields", text: "some\n", err: errField},
		{name: "no value", text: strings.Replace(some, "0.10", "", 1), err: errNumber},
		{name: "negative share", text: strings.Replace(some, "0.10", "-0.10", 1), err: errNegative},
		{name: "share above 1", text: strings.Replace(some, "0.10", "101.00", 1), err: errRange},
		{name: "share of NaN", text: strings.Replace(some, "0.10", "NaN", 1), err: errNumber},
		{name: "negative total", text: strings.Replace(some, "184412", "-1", 1), err: errNegative},
		{name: "more time than a Duration holds", text: strings.Replace(some, "184412", "9223372036854776", 1), err: errRange},
		{name: "total with a fraction", text: strings.Replace(some, "184412", "1.5", 1), err: errNumber},
		{name: "broken full", text: some + "full avg10=0.00\n", err: errField, says: `line "full avg10=0.00"`},
		{name: "empty", text: "", err: errEmpty},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseStall([]byte(test.text))
			if got != test.want || !errors.Is(err, test.err) || (err == nil) != (test.err == nil) {
				t.Errorf("%+v, %v; want %+v, %v", got, err, test.want, test.err)
			}
			if err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %q does not say %s", err, test.says)
			}
		})
	}
}

// What is left of a file that was cut is right or an error. That the line "full"
// is gone altogether cannot be told from a kernel without it.
func TestTruncatedStall(t *testing.T) {
	want, err := parseStall([]byte(stallText))
	must(t, err)
	for i := range stallText {
		got, err := parseStall([]byte(stallText[:i]))
		if err == nil && (got.Some != want.Some || got.FullOK) {
			t.Errorf("%q is read as %+v", stallText[:i], got)
		}
	}
}

package hotfile

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"
)

func TestParseTable(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       int64
		err        error
		says       string
	}{
		{name: "colon", text: "key: 5 kB\n", want: 5120},
		{name: "no colon, as in memory.stat", text: "key 5 kB\n", want: 5120},
		{name: "tabs", text: "key:\t5\tkB\n", want: 5120},
		{name: "among others", text: "a: 1\nkeys: 2 kB\nke: 3 kB\n\nkey: 5 kB\nb: x\n", want: 5120},
		{name: "the first counts", text: "key: 5 kB\nkey: 6 kB\n", want: 5120},
		{name: "a bad line that nobody wants", text: "other: -\nkey: 5 kB\n", want: 5120},
		{name: "no unit", text: "key: 5\n", err: errUnit, says: `line "key: 5"`},
		{name: "another unit", text: "key: 5 MB\n", err: errUnit, says: `line "key: 5 MB"`},
		{name: "no value", text: "key:\n", err: ErrNumber, says: `line "key:"`},
		{name: "minus", text: "key: -5 kB\n", err: ErrNegative, says: `line "key: -5 kB"`},
		{name: "plus", text: "key: +5 kB\n", err: ErrNumber, says: `line "key: +5 kB"`},
		{name: "too much in bytes", text: "key: 9007199254740992 kB\n", err: ErrRange, says: "9007199254740992"},
		{name: "cut", text: "key: 5 kB", err: ErrCut, says: `line "key: 5 kB"`},
		{name: "absent", text: "keys: 5 kB\n", says: `no line "key"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got int64
			err := ParseTable([]byte(test.text), []Key{{Name: "key", Value: &got, KiB: true}})
			if test.err == nil && test.says == "" {
				if err != nil || got != test.want {
					t.Errorf("%d, %v; want %d", got, err, test.want)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.says) || (test.err != nil && !errors.Is(err, test.err)) {
				t.Errorf("error %v, want one that says %s", err, test.says)
			}
		})
	}
}

func TestParseUint(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "007": 7, "9223372036854775807": math.MaxInt64,
	} {
		if got, err := ParseUint([]byte(text)); got != want || err != nil {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]error{
		"": ErrNumber, " 1": ErrNumber, "1 ": ErrNumber, "1_000": ErrNumber, "１": ErrNumber,
		"-1": ErrNegative, "-": ErrNegative,
		"9223372036854775808": ErrRange, "92233720368547758070": ErrRange, "99999999999999999999999999": ErrRange,
	} {
		_, err := ParseUint([]byte(text))
		probetest.CheckError(t, err, want)
	}
}

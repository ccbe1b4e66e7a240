package printable

import (
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "",
		"java":                                 "java",
		"kworker/0:1 ümläut 進程":                "kworker/0:1 ümläut 進程",
		`/system.slice/a\x2db.slice`:           `/system.slice/a\x2db.slice`, // as systemd names it
		"a\nb":                                 `"a\nb"`,
		"\x1b[31mred":                          `"\x1b[31mred"`,
		"\u009b31m":                            `"\u009b31m"`, // ESC [ in one character
		"\u202egnp.exe":                        `"\u202egnp.exe"`,
		"zero\u200bwidth":                      `"zero\u200bwidth"`,
		"\xff\xfe":                             `"\xff\xfe"`,
		"tab\tnul\x00del\x7f":                  `"tab\tnul\x00del\x7f"`,
		`"a\nb"`:                               `"\"a\\nb\""`, // no other text comes out as this does
		strings.Repeat("x", maxBytes):          strings.Repeat("x", maxBytes),
		strings.Repeat("x", maxBytes+1):        strings.Repeat("x", maxBytes) + "…",
		strings.Repeat("x", maxBytes-1) + "ü":  strings.Repeat("x", maxBytes-1) + "…",
		strings.Repeat("\x80", 2*maxBytes):     `"` + strings.Repeat(`\x80`, maxBytes-utf8.UTFMax) + `"…`,
		strings.Repeat("x", maxBytes) + "\x1b": strings.Repeat("x", maxBytes) + "…",
	} {
		if got := Text(text); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

// Whatever comes in, what comes out can be seen, is bounded, and tells two texts
// apart that were not cut.
func FuzzText(f *testing.F) {
	for _, seed := range []string{"java", "a\nb\x1b[31m", "\u202e", "\xff", `"quoted"`, strings.Repeat("ü", maxBytes)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := Text(text)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q: %q cannot be shown", text, got)
		}
		if len(got) > 4*maxBytes+len(`""…`) {
			t.Errorf("%q: %d bytes", text, len(got))
		}
		if len(text) > maxBytes {
			return
		}
		back := got
		if strings.HasPrefix(got, `"`) {
			var err error
			if back, err = strconv.Unquote(got); err != nil {
				t.Errorf("%q: %s: %v", text, got, err)
			}
		}
		if back != text {
			t.Errorf("%q: %s stands for %q", text, got, back)
		}
	})
}

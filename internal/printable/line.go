package printable

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line returns text as one line of at most limit runes, or of any length if limit is
// negative. A line that was cut ends in an ellipsis. What has no glyph of its own, such
// as a line break or an escape character, is replaced by U+FFFD.
//
// It is for text that is partly ours, such as an error. See [Text] for names, which it
// keeps apart.
func Line(text string, limit int) string {
	if limit == 0 {
		return ""
	}
	cut := limit > 0 && utf8.RuneCountInString(text) > limit
	var b strings.Builder
	n := 0
	for _, r := range text {
		if n++; cut && n == limit {
			b.WriteRune('…')
			break
		}
		if !unicode.IsGraphic(r) {
			r = unicode.ReplacementChar
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Package printable makes names that others have chosen safe to show.
package printable

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxBytes is how much of a text is kept: a container's cgroup has some 300 bytes at
// most, and quoted, four times as much as this still fits into an Event.
const maxBytes = 400

// Text returns text unchanged if all of it can be seen, else as a quoted Go string; a
// text that starts with a quotation mark is quoted too, so that no two texts look the
// same. A text of more than 400 bytes is cut, and ends in an ellipsis.
//
// A process in a pod can call itself anything. In a log, an Event or a terminal, a line
// break would begin a line in our name, and an escape sequence recolour or hide others.
func Text(text string) string {
	more := ""
	if n := maxBytes; len(text) > n {
		for n > maxBytes-utf8.UTFMax && !utf8.RuneStart(text[n]) {
			n--
		}
		text, more = text[:n], "…"
	}
	hidden := func(r rune) bool { return !unicode.IsPrint(r) }
	if !utf8.ValidString(text) || strings.ContainsFunc(text, hidden) || strings.HasPrefix(text, `"`) {
		text = strconv.Quote(text)
	}
	return text + more
}

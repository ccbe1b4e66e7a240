package status

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of what we write. The policies in deploy/identity enforce the same ones, so
// that a stolen pod token is not enough to fill up the Node. Any qualified name is a
// valid type there.
const (
	MaxConditions = 64
	MaxReason     = 128 // characters, which are bytes

	maxMessage      = 2048 // bytes
	maxEventMessage = 1024 // bytes; what events.k8s.io takes
)

// line returns text as one line of printable characters, of at most limit bytes.
func line(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsGraphic(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
	if len(text) <= limit {
		return text
	}
	const more = "…"
	end := limit - len(more)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + more
}

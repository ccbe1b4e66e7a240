package main

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// oneLine makes text fit on a line of so many runes, any number if most is
// negative, and drops what would do more to a terminal than take up a place.
func oneLine(text string, most int) string {
	if most == 0 {
		return ""
	}
	cut := most > 0 && utf8.RuneCountInString(text) > most
	var b strings.Builder
	n := 0
	for _, r := range text {
		if n++; cut && n == most {
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

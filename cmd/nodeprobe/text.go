package main

import (
	"strconv"
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

// maxForeign is how many bytes printable keeps: a container's cgroup has up to some
// 300, and quoted four times as much as this still fits into an Event.
const maxForeign = 400

// printable makes a name that somebody else has chosen safe to show: a process in a
// pod can call itself anything, and in a log, an Event or a terminal a line break
// begins a line in our name, and an escape sequence recolours or hides the others.
// The text is returned as it is if all of it can be seen, else as a quoted Go
// string; so is text that looks like one. Text of more than maxForeign bytes is cut.
func printable(text string) string {
	more := ""
	if n := maxForeign; len(text) > n {
		for n > maxForeign-utf8.UTFMax && !utf8.RuneStart(text[n]) {
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

package status

import (
	"fmt"
	"regexp"
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

	maxMessage = 2048 // bytes
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

// reasonForm is what the API server takes for a reason.
var reasonForm = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)

// CheckReason returns why the API server would not take a reason, or nil.
func CheckReason(reason string) error {
	switch {
	case !reasonForm.MatchString(reason):
		return fmt.Errorf("%q is not one word such as MemoryIsShort", reason)
	case len(reason) > MaxReason:
		return fmt.Errorf("%d characters, of which at most %d are allowed", len(reason), MaxReason)
	}
	return nil
}

package event

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A message is one that the policy takes: its bound, and its expression.
func TestBounds(t *testing.T) {
	file, err := os.ReadFile("../../deploy/identity/event-policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if bound := `size(bytes(variables.event.?message.orValue(''))) <= ` + strconv.Itoa(maxMessage) + ` `; !strings.Contains(string(file), bound) {
		t.Errorf("the policy does not have %q", bound)
	}
	match := regexp.MustCompile(`message\.orValue\(''\)\.matches\(r'(.*)'\)`).FindSubmatch(file)
	if match == nil {
		t.Fatal("the policy has no expression for messages")
	}
	printable := regexp.MustCompile(string(match[1]))

	for r := rune(0); r <= utf8.MaxRune; r++ {
		if text := oneLine("a" + string(r)); !printable.MatchString(text) {
			t.Fatalf("%q becomes %q, which the policy refuses", r, text)
		}
	}
	c := correlator{}
	now := time.Unix(1e9, 0)
	long := strings.Repeat("ä\n", 4096)
	for range 2 * maxSimilar { // the last ones are combined
		long = "x" + long // cuts a rune in two at each second length
		s, ok := c.observe(occurrence{v1.EventTypeWarning, "X", long, now})
		if !ok {
			t.Fatal("it is held back")
		}
		m := s.event(metav1.OwnerReference{}, "x").Message
		if len(m) > maxMessage || len(m) < maxMessage-8 || !strings.HasSuffix(m, "…") || !printable.MatchString(m) {
			t.Errorf("a message has %d bytes: %.20q", len(m), m)
		}
	}
}

func TestOneLine(t *testing.T) {
	full := strings.Repeat("ä", maxMessage/2)
	for text, want := range map[string]string{
		"": "", "a\nb\x1b[2J": "a\ufffdb\ufffd[2J", full: full,
		full + "x": strings.Repeat("ä", maxMessage/2-2) + "…", // another one would be cut in two
	} {
		if got := oneLine(text); got != want {
			t.Errorf("oneLine(%.20q) = %.20q of %d bytes, want %.20q of %d", text, got, len(got), want, len(want))
		}
	}
}

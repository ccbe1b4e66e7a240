package status

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLine(t *testing.T) {
	for _, tt := range []struct {
		text string
		most int
		want string
	}{
		{"", 8, ""},
		{"8 bytes.", 8, "8 bytes."},
		{"9 bytes..", 8, "9 byt…"},
		{"ääää", 8, "ääää"},
		{"äääää", 8, "ää…"}, // the third would be cut in two
		{"a\nb\x1b[2J", 20, "a\ufffdb\ufffd[2J"},
		{"a\r\u2028\u202e\u200b\x7f", 30, "a" + strings.Repeat("\ufffd", 5)},
		{"\xff", 8, "\ufffd"},
		{"\n\n\n", 8, "\ufffd…"}, // what stands in its place is longer
	} {
		if got := line(tt.text, tt.most); got != tt.want {
			t.Errorf("line(%q, %d) = %q, want %q", tt.text, tt.most, got, tt.want)
		}
	}
}

// What we post is what the policies take.
func TestBounds(t *testing.T) {
	ofPolicy := func(name string) (text string, printable *regexp.Regexp) {
		t.Helper()
		file, err := os.ReadFile(filepath.Join("..", "deploy", "identity", name))
		if err != nil {
			t.Fatal(err)
		}
		match := regexp.MustCompile(`message\.orValue\(''\)\.matches\(r'(.*)'\)`).FindSubmatch(file)
		if match == nil {
			t.Fatalf("%s has no expression for messages", name)
		}
		return string(file), regexp.MustCompile(string(match[1]))
	}
	node, printable := ofPolicy("node-policy.yaml")
	event, printableOfEvent := ofPolicy("event-policy.yaml")
	for _, tt := range []struct {
		policy, text, bound string
	}{
		{"node", node, `size(variables.ours) <= ` + strconv.Itoa(MaxConditions) + ` `},
		{"node", node, `size(c.?reason.orValue('')) <= ` + strconv.Itoa(MaxReason) + ` `},
		{"node", node, `size(bytes(c.?message.orValue(''))) <= ` + strconv.Itoa(maxMessage) + ` `},
		{"event", event, `size(variables.event.?reason.orValue('')) <= ` + strconv.Itoa(MaxReason) + ` `},
		{"event", event, `size(bytes(variables.event.?message.orValue(''))) <= ` + strconv.Itoa(maxEventMessage) + ` `},
	} {
		if !strings.Contains(tt.text, tt.bound) {
			t.Errorf("the %s policy does not have %q", tt.policy, tt.bound)
		}
	}
	var every strings.Builder
	for r := rune(0); r <= utf8.MaxRune; r++ {
		every.WriteRune(r)
	}
	if text := line(every.String(), every.Len()*2); !printable.MatchString(text) || !printableOfEvent.MatchString(text) {
		t.Error("line leaves something that a policy refuses")
	}

	long := strings.Repeat("ä\n", 4096)
	now := time.Unix(1e9, 0)
	a := compareConditions(&v1.Node{}, []Condition{{Type: "nodeprobe.dev/X", Status: v1.ConditionTrue, Reason: "X", Message: long, Since: now}}, DefaultFieldManager, now)
	if m := a.all[0].Message; len(m) > maxMessage || len(m) < maxMessage-8 || !printable.MatchString(m) {
		t.Errorf("a condition's message has %d bytes: %.20q", len(m), m)
	}
	c := correlator{}
	for range 2 * maxSimilar { // the last ones are combined
		long += "x"
		s, ok := c.observe(occurrence{v1.EventTypeWarning, "X", long, now})
		if !ok {
			t.Fatal("it is held back")
		}
		if m := s.event(metav1.OwnerReference{}, "x").Message; len(m) > maxEventMessage || len(m) < maxEventMessage-8 || !printableOfEvent.MatchString(m) {
			t.Errorf("an Event's message has %d bytes: %.20q", len(m), m)
		}
	}
}

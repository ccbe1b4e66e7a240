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
	policy := func(name string) string {
		t.Helper()
		file, err := os.ReadFile(filepath.Join("..", "deploy", "identity", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(file)
	}
	node, event := policy("node-policy.yaml"), policy("event-policy.yaml")
	match := regexp.MustCompile(`message\.orValue\(''\)\.matches\(r'(.*)'\)`).FindStringSubmatch(node)
	if match == nil {
		t.Fatal("the node policy has no expression for messages")
	}
	printable := regexp.MustCompile(match[1])
	for _, tt := range []struct {
		policy, text, bound string
	}{
		{"node", node, `size(variables.ours) <= ` + strconv.Itoa(MaxConditions) + ` `},
		{"node", node, `size(c.?reason.orValue('')) <= ` + strconv.Itoa(MaxReason) + ` `},
		{"node", node, `size(bytes(c.?message.orValue(''))) <= ` + strconv.Itoa(maxMessage) + ` `},
		{"event", event, `size(variables.event.?reason.orValue('')) <= ` + strconv.Itoa(MaxReason) + ` `},
	} {
		if !strings.Contains(tt.text, tt.bound) {
			t.Errorf("the %s policy does not have %q", tt.policy, tt.bound)
		}
	}
	var every strings.Builder
	for r := rune(0); r <= utf8.MaxRune; r++ {
		every.WriteRune(r)
	}
	if text := line(every.String(), every.Len()*2); !printable.MatchString(text) {
		t.Error("line leaves something that the policy refuses")
	}

	long := strings.Repeat("ä\n", 4096)
	now := time.Unix(1e9, 0)
	a := compareConditions(&v1.Node{}, []Condition{{Type: "nodeprobe.dev/X", Status: v1.ConditionTrue, Reason: "X", Message: long, Since: now}}, DefaultFieldManager, now)
	if m := a.all[0].Message; len(m) > maxMessage || len(m) < maxMessage-8 || !printable.MatchString(m) {
		t.Errorf("a condition's message has %d bytes: %.20q", len(m), m)
	}
}

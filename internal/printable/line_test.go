package printable

import "testing"

func TestLine(t *testing.T) {
	for _, test := range []struct {
		text  string
		limit int
		want  string
	}{
		{"abc", 3, "abc"},
		{"abcd", 3, "ab…"},
		{"äöü", 3, "äöü"},
		{"██████", 4, "███…"},
		{"abc", 1, "…"},
		{"abc", 0, ""},
		{"abc", -1, "abc"},
		{"a\nb\tc\x1bd\x00", -1, "a\ufffdb\ufffdc\ufffdd\ufffd"},
		{"\xff", -1, "\ufffd"},
		{"", 5, ""},
	} {
		if got := Line(test.text, test.limit); got != test.want {
			t.Errorf("Line(%q, %d) = %q, want %q", test.text, test.limit, got, test.want)
		}
	}
}

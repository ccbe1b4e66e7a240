package page

import "testing"

func TestAmount(t *testing.T) {
	for _, test := range []struct {
		n    int64
		unit string
		want string
	}{
		{0, "bytes", "0"},
		{999, "bytes", "999"},
		{1000, "bytes", "0.977Ki"},
		{1 << 10, "bytes", "1Ki"},
		{1023 << 20, "bytes", "0.999Gi"},
		{100 << 20, "bytes", "100Mi"},
		{-1 << 30, "bytes", "-1Gi"},
		{1<<63 - 1, "bytes", "8Ei"},
		{0, "tasks", "0"},
		{32568, "tasks", "32568"},
		{16777216, "inodes", "16777216"},
		{1000, "inodes", "1k"},
	} {
		if got := amount(test.n, test.unit); got != test.want {
			t.Errorf("amount(%d, %s) = %s, want %s", test.n, test.unit, got, test.want)
		}
	}
}

func TestBar(t *testing.T) {
	for _, test := range []struct {
		available, capacity int64
		want                string
	}{
		{50, 100, "██████████··········  50%"},
		{100, 100, "████████████████████ 100%"},
		{0, 100, "····················   0%"},
		{-5, 100, "····················   0%"},
		{200, 100, "████████████████████ 100%"},
		{1, 0, "-"},
	} {
		if got := bar(test.available, test.capacity); got != test.want {
			t.Errorf("bar(%d, %d) = %s", test.available, test.capacity, got)
		}
	}
}

package page

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/duration"
)

// amount formats bytes with three digits and a binary prefix, and counts in full.
func amount(n int64, unit string) string {
	if unit != "bytes" {
		return resource.NewQuantity(n, resource.DecimalSI).String()
	}
	value, prefixes := float64(n), []string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}
	i := 0
	for ; (value >= 1000 || value <= -1000) && i < len(prefixes)-1; i++ {
		value /= 1024
	}
	if i == 0 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%.3g%s", value, prefixes[i])
}

// percentOf returns n as a percentage of capacity, which is positive.
func percentOf(n, capacity int64) float64 {
	return 100 * min(1, max(0, float64(n)/float64(capacity)))
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }

// since formats the time from t to now.
func since(t, now time.Time) string { return duration.HumanDuration(max(0, now.Sub(t))) }

// ago formats how long before now t was, and its time of day.
func ago(t, now time.Time) string {
	return since(t, now) + " ago, at " + t.Format(time.TimeOnly)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

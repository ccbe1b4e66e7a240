package kube

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// What client-go logs is for those who debug, but not every body that it sends and
// receives.
func TestLogAtDebug(t *testing.T) {
	for _, test := range []struct {
		level slog.Level
		want  []string
	}{
		{slog.LevelDebug, []string{`level=DEBUG msg=retrying`, `level=DEBUG msg=connected`, `level=DEBUG msg="no answer" err=refused`}},
		{slog.LevelInfo, nil},
	} {
		var out strings.Builder
		handler := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: test.level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})
		LogAtDebug(slog.New(handler))
		t.Cleanup(klog.ClearLogger)
		log := klog.Background()
		log.V(2).Info("retrying")
		log.V(4).Info("connected")
		log.V(8).Info("Request Body", "body", "0000  6b 38 73")
		log.Error(errors.New("refused"), "no answer")
		want := ""
		for _, line := range test.want {
			want += line + "\n"
		}
		if out.String() != want {
			t.Errorf("at %v: got\n%swant\n%s", test.level, &out, want)
		}
	}
}

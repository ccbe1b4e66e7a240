package apiclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nodeprobe/nodeprobe/internal/once"
	"github.com/nodeprobe/nodeprobe/status/node"
)

func TestParseCSINode(t *testing.T) {
	for _, test := range []struct {
		name, spec string
		want       node.VolumeLimits
		err        string
	}{
		{"no drivers", `{}`, node.VolumeLimits{}, ""},
		{"null", `{"drivers":null}`, node.VolumeLimits{}, ""},
		{
			"some", `{"drivers":[{"name":"a","nodeID":"n","topologyKeys":null,"allocatable":{"count":3}},
				{"name":"no-limit","nodeID":"n"},{"name":"nor-this","allocatable":{}},{"name":"none","allocatable":{"count":0}}]}`,
			node.VolumeLimits{"attachable-volumes-csi-a": 3, "attachable-volumes-csi-none": 0},
			"",
		},
		{"negative", `{"drivers":[{"name":"a","allocatable":{"count":-1}}]}`, nil, "driver a: limit -1 is negative"},
		{"not a number", `{"drivers":[{"name":"a","allocatable":{"count":"3"}}]}`, nil, "cannot unmarshal string"},
		{"cut off", `{`, nil, "unexpected end of JSON input"},
	} {
		got, err := parseCSINode([]byte(`{"kind":"CSINode","spec":` + test.spec + strings.Repeat("}", min(1, len(test.spec)-1))))
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: error %v, want %s", test.name, err, test.err)
		}
		if d := cmp.Diff(test.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, d)
		}
	}
}

// What cannot be read stays as it was; a CSINode that is gone has no limits.
func TestCSINodeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		spec := func(count int) string {
			return fmt.Sprintf(`{"spec":{"drivers":[{"name":"d","allocatable":{"count":%d}}]}}`, count)
		}
		gone := apierrors.NewNotFound(schema.GroupResource{Resource: "csinodes"}, "n")
		answers := []any{spec(1), spec(1), errors.New("refused"), errors.New("refused"), "{", spec(2), gone, nil}
		var logs strings.Builder
		var got []string
		at := func(what string) { got = append(got, fmt.Sprint(time.Since(start), " ", what)) }
		c := &CSINode{alive: func(time.Duration) {}, timeout: 10 * time.Second, log: once.Logger(slog.New(slog.NewTextHandler(&logs, nil)))}
		c.get = func(ctx context.Context) ([]byte, error) {
			answer := answers[0]
			answers = answers[1:]
			at("get")
			switch answer := answer.(type) {
			case string:
				return []byte(answer), nil
			case error:
				return nil, answer
			}
			<-ctx.Done() // nobody answers
			return nil, context.Cause(ctx)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("stop")
		done := make(chan error)
		go func() { done <- c.Run(ctx, func(limits node.VolumeLimits) { at(fmt.Sprint(limits)) }) }()
		time.Sleep(22 * time.Minute)
		cancel(cause)
		if err := <-done; !errors.Is(err, cause) {
			t.Errorf("ended with %v", err)
		}
		want := []string{
			"0s get", "0s map[attachable-volumes-csi-d:1]", "5m0s get", "10m0s get", "10m30s get", "11m0s get",
			"11m30s get", "11m30s map[attachable-volumes-csi-d:2]", "16m30s get", "16m30s map[]", "21m30s get",
		}
		if d := cmp.Diff(want, got[:min(len(got), len(want))]); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		if n := strings.Count(logs.String(), "get CSINode: refused"); n != 1 || !strings.Contains(logs.String(), "decode CSINode: unexpected end") {
			t.Errorf("logged:\n%s", logs.String())
		}
	})
}

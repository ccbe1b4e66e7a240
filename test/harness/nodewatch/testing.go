package nodewatch

import (
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// FollowForTest is Follow until the test ends.
func FollowForTest(t testing.TB, client kubernetes.Interface, name string) *History {
	t.Helper()
	h := must.Get(Follow(t.Context(), client, name))(t)
	return h
}

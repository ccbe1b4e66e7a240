package nodewatch

import (
	"testing"

	"k8s.io/client-go/kubernetes"
)

// FollowForTest is Follow until the test ends.
func FollowForTest(t testing.TB, client kubernetes.Interface, name string) *History {
	t.Helper()
	h, err := Follow(t.Context(), client, name)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

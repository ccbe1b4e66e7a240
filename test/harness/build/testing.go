package build

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// product is nodeprobe as the tests of one binary share it.
var product struct {
	once      sync.Once
	dir, file string
	err       error
}

// ProductForTest returns the nodeprobe under test: the file that
// NODEPROBE_BINARY names, or else built from the tree for the first test that
// asks. TestMain must call Main.
func ProductForTest(t testing.TB) string {
	t.Helper()
	product.once.Do(func() {
		if product.file = os.Getenv("NODEPROBE_BINARY"); product.file != "" {
			return
		}
		product.dir, product.err = os.MkdirTemp("", "nodeprobe-product-") //nolint:usetesting // outlives the first test
		if product.err == nil {
			product.file, product.err = Product(t.Context(), product.dir, os.Stderr)
		}
	})
	if product.err != nil {
		t.Fatal(product.err)
	}
	return product.file
}

// RootForTest returns the root of the product's module.
func RootForTest(t testing.TB) string {
	t.Helper()
	root := must.Get(Root())(t)
	return filepath.Dir(root)
}

// Main runs the tests, and then removes what ProductForTest has built.
func Main(m *testing.M) int {
	code := m.Run()
	if err := os.RemoveAll(product.dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

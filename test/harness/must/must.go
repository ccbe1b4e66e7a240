// Package must reports what goes wrong in a test, in one line where it happens.
package must

import "testing"

// OK ends the test if err is not nil.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Get is for a call that returns a value too, which it returns: it ends the test if
// err is not nil.
//
//	data := must.Get(os.ReadFile(name))(t)
func Get[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		OK(t, err)
		return value
	}
}

// Note reports err if it is not nil, and the test goes on.
func Note(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

package program

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

// A program that fails undoes all of what it made, the last first, and reports what
// failed on the way; one that was interrupted reports that alone.
func TestRun(t *testing.T) {
	interrupted, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted"))
	for _, test := range []struct {
		name, want string
		ctx        context.Context
		args       []string
		run        func(p *P)
	}{
		{"fine", "", t.Context(), []string{"-n", "1"}, func(*P) {}},
		{"fatal", "broken\nundone", t.Context(), nil, func(p *P) { p.Cleanup(func() { p.Fatal("undone") }); p.Fatal(errors.New("broken")) }},
		{"goes on", "one\ntwo 2", t.Context(), nil, func(p *P) { p.Error("one"); p.Errorf("two %d", 2) }},
		{"tried", "that: broken", t.Context(), nil, func(p *P) { p.Errorf("that: %w", p.Try(func() { p.Fatal("broken") })) }},
		{"interrupted", "interrupted", interrupted, nil, func(p *P) {
			p.Cleanup(func() {
				if p.Failed() { // then there would be something to look into
					t.Error("failed, but was interrupted")
				}
			})
			p.Fatal("because of that")
		}},
		{"scopes", "broken", t.Context(), nil, func(p *P) {
			undone := 0
			p.Scope(func() { p.Cleanup(func() { undone++ }) })
			p.Cleanup(func() {
				if undone != 2 {
					t.Errorf("scopes: %d undone", undone)
				}
			})
			p.Scope(func() { p.Cleanup(func() { undone++ }); p.Fatal("broken") })
			p.Fatal("goes on")
		}},
		{"flag", "flag provided but not defined: -x", t.Context(), []string{"-x"}, func(*P) {}},
		{"argument", `unknown argument "x"`, t.Context(), []string{"x"}, func(*P) {}},
	} {
		var order []int
		dir := ""
		err := Run(test.ctx, "test", test.args, io.Discard, io.Discard, func(p *P) {
			p.Flags.Int("n", 0, "")
			dir = p.TempDir()
			p.Cleanup(func() { order = append(order, 2) })
			p.Cleanup(func() { order = append(order, 1) })
			p.Parse()
			test.run(p)
		})
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != test.want || !slices.Equal(order, []int{1, 2}) {
			t.Errorf("%s: %q, want %q; undone %v", test.name, got, test.want, order)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) || !strings.Contains(dir, "nodeprobe-test-") {
			t.Errorf("%s: %s is left: %v", test.name, dir, err)
		}
	}
}

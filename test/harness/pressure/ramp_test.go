package pressure

import (
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// What a Ramp takes is missing from what is available, and what it gives back is
// there again. Others use and give back memory and tasks at the same time.
func TestRamps(t *testing.T) {
	for _, test := range []struct {
		name        string
		take, slack int64
		open        func(t *testing.T) (Ramp, error)
	}{
		{"memory", 512 << 20, 200 << 20, func(*testing.T) (Ramp, error) { return MemoryRamp(512 << 20) }},
		{"tasks", 1500, 500, func(*testing.T) (Ramp, error) { return TaskRamp() }},
		{"disk", 8 << 20, 64 << 10, func(t *testing.T) (Ramp, error) {
			return DiskRamp(DiskForTest(t, 32))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := must.Get(test.open(t))(t)
			available := func() int64 {
				return must.Get(r.Available())(t)
			}
			before := available()
			for range 2 {
				must.OK(t, r.Take(test.take/2))
			}
			settled(t, "taken", func() bool {
				taken := before - available()
				return taken > test.take-test.slack && taken < test.take+test.slack
			})
			must.OK(t, r.Give(test.take/2))
			settled(t, "half given back", func() bool { return before-available() < test.take/2+test.slack })
			if err := r.Give(test.take); err != nil { // more than there is
				t.Fatal(err)
			}
			settled(t, "all given back", func() bool { return before-available() < test.slack })
			must.Note(t, r.Close())
		})
	}
}

func TestRampRefusesTooMuch(t *testing.T) {
	if _, err := MemoryRamp(1 << 50); err == nil {
		t.Error("MemoryRamp of a PiB: no error")
	}
	tasks := must.Get(TaskRamp())(t)
	defer tasks.Close()
	if err := tasks.Take(9000); err == nil {
		t.Error("9000 tasks: no error")
	}
	r := must.Get(MemoryRamp(1 << 20))(t)
	defer r.Close()
	if err := r.Take(2 << 20); err == nil {
		t.Error("more than the most: no error")
	}
}

func TestNumber(t *testing.T) {
	const stat = "anon 12\nfile 34\ninactive_file 5\ntotal_inactive_file 6\n"
	for _, test := range []struct {
		text, key string
		want      int64
		bad       bool
	}{
		{stat, "file", 34, false},
		{stat, "inactive_file", 5, false},
		{stat, "total_inactive_file", 6, false},
		{"123\n", "", 123, false},
		{stat, "slab", 0, true},
		{"", "", 0, true},
		{"file x\n", "file", 0, true},
	} {
		got, err := number([]byte(test.text), test.key)
		if got != test.want || (err != nil) != test.bad {
			t.Errorf("%q in %q: %d, %v", test.key, test.text, got, err)
		}
	}
}

// settled waits for what the kernel does a little later: to end threads, and to
// sum up what the CPUs have counted. Others may hold memory for a while, too.
func settled(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so: %s", what)
		}
	}
}

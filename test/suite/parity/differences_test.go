package parity

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/go-cmp/cmp"
)

// asMap is an object as JSON has it.
func asMap(object any) map[string]any {
	data, err := json.Marshal(object)
	if err != nil {
		panic(err) // an API object
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		panic(err)
	}
	return m
}

// differences collects where two objects differ, by the paths of their fields.
type differences struct {
	path  cmp.Path
	found []difference
}

type difference struct{ path, theirs, ours string }

func (d *differences) PushStep(step cmp.PathStep) { d.path = append(d.path, step) }
func (d *differences) PopStep()                   { d.path = d.path[:len(d.path)-1] }

func (d *differences) Report(result cmp.Result) {
	if result.Equal() {
		return
	}
	var b strings.Builder
	for _, step := range d.path {
		switch s := step.(type) {
		case cmp.MapIndex:
			key := s.Key().String()
			if strings.ContainsAny(key, "./") {
				fmt.Fprintf(&b, "[%s]", key)
			} else {
				fmt.Fprintf(&b, ".%s", key)
			}
		case cmp.SliceIndex:
			theirs, ours := s.SplitKeys()
			fmt.Fprintf(&b, "[%d]", max(theirs, ours))
		}
	}
	theirs, ours := d.path.Last().Values()
	show := func(valid bool, value any) string {
		if !valid {
			return "nothing"
		}
		return fmt.Sprintf("%v", value)
	}
	d.found = append(d.found, difference{
		path:   strings.TrimPrefix(b.String(), "."),
		theirs: show(theirs.IsValid(), theirs), ours: show(ours.IsValid(), ours),
	})
}

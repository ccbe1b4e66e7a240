package pressure

import (
	"strings"
	"testing"
)

func TestParseClause(t *testing.T) {
	for text, want := range map[string]string{
		"MemoryPressure":                  "MemoryPressure",
		" DiskPressure  and PIDPressure ": "DiskPressure and PIDPressure",
		"memory.available < 100Mi":        "memory.available < 100Mi",
		"memory.available   <  104857600": "memory.available < 100Mi",
		"nodefs.inodesFree < 5%":          "nodefs.inodesFree < 5%",
		"pid.available < 2k":              "pid.available < 2k",
		"cpu.some.avg300 > 0%":            "cpu.some.avg300 > 0%",
		"io.full.avg60 > 12.5%":           "io.full.avg60 > 12.5%",
		"nodefs.readonly":                 "nodefs.readonly",
		"imagefs.readonly":                "imagefs.readonly",
		"memAvailable < 500Mi":            "memAvailable < 500Mi",
		"swap.available < 10%":            "swap.available < 10%",
		"memory.full.avg10 > 99% and imagefs.readonly and MemoryPressure": "memory.full.avg10 > 99% and imagefs.readonly and MemoryPressure",
	} {
		clause, err := ParseClause(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := clause.String(); got != want {
			t.Errorf("%q reads back as %q, want %q", text, got, want)
		}
		again, err := ParseClause(want)
		if err != nil || again.String() != want {
			t.Errorf("%q: %v, %v", want, again, err)
		}
	}
	for text, want := range map[string]string{
		"":                                  "not a term such as",
		" and ":                             "not a term such as",
		"Ready":                             "not a term such as",
		"memory.available <":                "not a term such as",
		"memory.available < 100Mi or x":     "not a term such as",
		"memory.available > 100Mi":          "memory.available can only be compared with <",
		"memory.available < much":           "quantities must match",
		"memory.available < -1":             "must be positive",
		"memory.available < 0%":             "this never holds",
		"memory.available < 101%":           "must be <= 100%",
		"containerfs.available < 5%":        "unknown signal containerfs.available",
		"memory.free < 5%":                  "unknown signal memory.free",
		"gpu.some.avg10 > 5%":               "unknown signal gpu.some.avg10",
		"memory.most.avg10 > 5%":            "unknown signal memory.most.avg10",
		"memory.some.avg20 > 5%":            "unknown signal memory.some.avg20",
		"memory.some.avg10 < 5%":            "can only be compared with >",
		"memory.some.avg10 > 5":             "is not a share from 0% to below 100%",
		"memory.some.avg10 > 100%":          "is not a share from 0% to below 100%",
		"memory.some.avg10 > NaN%":          "is not a share from 0% to below 100%",
		"MemoryPressure and disk.readonly":  `"disk.readonly": not a term such as`,
		"MemoryPressure and DiskPressure 5": `"DiskPressure 5": not a term such as`,
	} {
		if clause, err := ParseClause(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %s", text, clause, err, want)
		}
	}
}

func FuzzParseClause(f *testing.F) {
	for _, seed := range []string{"MemoryPressure", "memory.available < 100Mi and io.full.avg60 > 12.5%", "nodefs.readonly"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		clause, err := ParseClause(text)
		if err != nil {
			return
		}
		again, err := ParseClause(clause.String())
		if err != nil || again.String() != clause.String() {
			t.Errorf("%q is %q, which reads back as %q, %v", text, clause, again, err)
		}
	})
}

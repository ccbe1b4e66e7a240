package main

import "testing"

func TestIdle(t *testing.T) {
	then, err := parseCPUTime("cpu  10 0 20 60 10 0 0 0 0 0\ncpu0 1 2 3\n")
	if err != nil || then != (cpuTime{100, 70}) {
		t.Errorf("got %+v, %v", then, err)
	}
	now, err := parseCPUTime("cpu  20 10 20 120 10 5 5 10 7 0\n")
	if err != nil || now.idleSince(then) != 0.6 {
		t.Errorf("got %+v, %v, idle %g", now, err, now.idleSince(then))
	}
	if got := then.idleSince(then); got != 0 {
		t.Errorf("within no time: %g", got)
	}
	if _, err := parseCPUTime("intr 1 2\n"); err == nil {
		t.Error("another line: no error")
	}
	if _, err := readCPUTime(); err != nil {
		t.Error(err)
	}
}

package main

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(m.Run())
}

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		env  map[string]string
		want options
		bad  bool
	}{
		{"defaults", nil, nil, options{crossings: 50, peerCrossings: 6}, false},
		{
			"environment", nil,
			map[string]string{"CROSSINGS": "7", "PEER": "kubelet", "PEER_CROSSINGS": "2"},
			options{crossings: 7, peerCrossings: 2, peer: "kubelet"},
			false,
		},
		{
			"flags win",
			[]string{"-crossings", "8", "-peer", "", "-only", "disk", "-nodeprobe", "x"},
			map[string]string{"CROSSINGS": "7", "PEER": "kubelet"},
			options{crossings: 8, peerCrossings: 6, only: "disk", binary: "x"},
			false,
		},
		{"no number", nil, map[string]string{"CROSSINGS": "many"}, options{}, true},
		{"no crossing", []string{"-crossings", "0"}, nil, options{}, true},
		{"another peer", []string{"-peer", "cadvisor"}, nil, options{}, true},
		{"another load", []string{"-only", "cpu"}, nil, options{}, true},
	} {
		got, err := parse(test.args, func(name string) string { return test.env[name] }, io.Discard)
		if (err != nil) != test.bad || err == nil && got != test.want {
			t.Errorf("%s: %+v, %v", test.name, got, err)
		}
	}
}

// Of the loads, nobody else on the machine presses on the filesystem.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a control plane; -short is set")
	}
	need.Root(t)
	need.Command(t, "mkfs.ext4", "e2fsprogs")
	var stdout bytes.Buffer
	must.OK(t, run(t.Context(), []string{"-only", "disk", "-crossings", "2", "-peer", ""}, &stdout, os.Stderr))
	t.Logf("\n%s", &stdout)
	for _, want := range []string{
		`disk_go_p50=-?\d+\.\d+ ms budget=0.5`,
		`disk_go_p99=-?\d+\.\d+ ms budget=5`,
		`disk_node_p50=\d+\.\d+ ms budget=5 peer=floor:\d+\.\d+`,
		`disk_node_p99=\d+\.\d+ ms budget=25 peer=floor:\d+\.\d+`,
		`disk_missed_by_kernel=\d of_2 budget=0`,
	} {
		if !regexp.MustCompile(`(?m)^RESULT latency_` + want + `$`).Match(stdout.Bytes()) {
			t.Errorf("no line like RESULT latency_%s", want)
		}
	}
}

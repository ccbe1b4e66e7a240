package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

// A path that does not lead to the node is named first, and what fails because of
// it points there.
func TestWrongPaths(t *testing.T) {
	empty := t.TempDir()
	missing := filepath.Join(empty, "missing")
	for _, test := range []struct {
		name   string
		change func(p *paths)
		init   string // root directory of process 1
		want   []string
	}{
		{"good", func(*paths) {}, "", nil},
		{"no procfs", func(p *paths) { p.procfs = missing }, "", []string{"fails --path.procfs: open " + missing + ": no such file or directory"}},
		{"empty procfs", func(p *paths) { p.procfs = empty }, "", []string{"fails --path.procfs: " + empty + " is empty"}},
		{"no sysfs", func(p *paths) { p.sysfs = missing }, "", []string{"fails --path.sysfs: open " + missing + ": no such file or directory"}},
		{"empty rootfs", func(p *paths) { p.rootfs = empty }, "", []string{"fails --path.rootfs: " + empty + " is empty"}},
		{"all forgotten", func(p *paths) { *p = paths{missing, missing, missing} }, "", []string{
			"fails --path.procfs: open " + missing + ": no such file or directory",
			"fails --path.sysfs: open " + missing + ": no such file or directory",
			"fails --path.rootfs: open " + missing + ": no such file or directory",
		}},
		{"root of process 1 is our own", func(*paths) {}, "/", nil},
		{"root of process 1 is another", func(*paths) {}, empty, []string{"missing --path.rootfs: ROOT is not the root directory of the node's process 1, PROC/1/root"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := testtree.New(t, nil)
			p := pathsOf(tr)
			if test.init != "" {
				if err := os.Symlink(test.init, filepath.Join(p.procfs, "1/root")); err != nil {
					t.Fatal(err)
				}
			}
			hide := strings.NewReplacer(p.rootfs, "ROOT", p.procfs, "PROC")
			test.change(&p)
			_, findings := preflightJSON(t, "--path.procfs="+p.procfs, "--path.sysfs="+p.sysfs, "--path.rootfs="+p.rootfs, "--config", writeConfig(t, ""))
			var got []string
			for _, f := range findings {
				if strings.HasPrefix(f.What, "--path.") {
					got = append(got, hide.Replace(f.Outcome+" "+f.What+": "+f.Detail))
					continue
				}
				if len(got) > 0 && strings.Contains(f.Detail, empty) && f.Remedy != "" && !strings.HasPrefix(f.Remedy, "see --path.") {
					t.Errorf("the remedy leads elsewhere: %+v", f)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

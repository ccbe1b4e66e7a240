// Package page looks at nodeprobe's status page with a browser.
package page

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

func TestMain(m *testing.M) { os.Exit(build.Main(m)) }

// device is a screen, and what its user likes.
type device struct {
	name          string
	width, height int
	dark          bool
}

var devices = []device{
	{"desktop-light", 1200, 900, false},
	{"desktop-dark", 1200, 900, true},
	{"tablet-light", 768, 1024, false},
	{"phone-light", 360, 800, false},
	{"phone-dark", 360, 800, true},
}

func start(t *testing.T, config agent.Config, args ...string) *agent.Agent {
	t.Helper()
	return agent.StartForTest(t, agent.Spec{
		Binary: build.ProductForTest(t), Dir: t.TempDir(), NodeName: "a-node",
		Config: agent.Own().With(agent.Config{"mode": "observe"}).With(config), Args: args,
	})
}

// check fails if something is cut off or sticks out to the right, or if the console
// has a complaint.
func (c *chromium) check(d device) {
	c.t.Helper()
	if width := eval[int](c, "document.documentElement.scrollWidth"); width > d.width {
		c.t.Errorf("%s: the page is %d wide, the screen %d", d.name, width, d.width)
	}
	if out := c.text(sticksOut); out != "" {
		c.t.Errorf("%s: sticks out: %s", d.name, out)
	}
	if c.console != "" {
		c.t.Errorf("%s: the console has:\n%s", d.name, c.console)
	}
}

// sticksOut returns the elements that reach beyond the right edge of what holds them.
//
//go:embed testdata/sticksout.js
var sticksOut string

// faint returns the texts whose contrast is below the 4.5 of WCAG's level AA, if
// any, with their colours.
//
//go:embed testdata/faint.js
var faint string

// nameless returns what has a role and no name for those who do not see it.
//
//go:embed testdata/nameless.js
var nameless string

func TestPage(t *testing.T) {
	c := startChromium(t)
	a := start(t, agent.Config{"evictionHard": agent.Hard(map[string]string{
		"memory.available": "1Mi", "pid.available": "1%", "nodefs.available": "99.99%", "nodefs.inodesFree": "1%",
	})})
	backs := map[bool]string{}
	for _, d := range devices {
		c.open(a.URL("/"), d)
		if title := c.text("document.title"); title != "a-node: DiskPressure" {
			t.Errorf("%s: the title is %q", d.name, title)
		}
		c.check(d)
		if text := c.text(faint); text != "" {
			t.Errorf("%s: hard to read:\n%s", d.name, text)
		}
		if text := c.text(nameless); text != "" {
			t.Errorf("%s: without a name:\n%s", d.name, text)
		}
		backs[d.dark] = c.text("getComputedStyle(document.body).backgroundColor")
		c.eventually("document.documentElement.dataset.looks > 0")
		c.check(d)
	}
	if backs[false] == backs[true] {
		t.Errorf("light and dark have the background %s", backs[true])
	}
	text := c.text("document.body.innerText")
	for _, want := range []string{
		"Conditions", "MemoryPressure", "DiskPressure", "nodefs.available<99.99%", "PIDPressure",
		"memory.available", "reached", "Tier", "BPF is turned off", "Samples", "Mode", "observe",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not on the page:\n%s", want, text)
		}
	}
}

// What is on the page changes, its elements do not: a selection stays, and so does the
// place of a screen reader. Nothing but the page itself is requested.
func TestPageFollows(t *testing.T) {
	c := startChromium(t)
	a := start(t, nil)
	c.open(a.URL("/"), devices[0])
	c.text(`window.then = document.querySelector('header time').textContent, window.rows = [...document.querySelectorAll('h1, tr, .card, time')], 'ok'`)
	c.eventually(`document.documentElement.dataset.looks > 1 && document.querySelector('header time').textContent !== window.then`)
	if n := eval[int](c, `window.rows.filter(e => !e.isConnected).length`); n != 0 {
		t.Errorf("%d elements were replaced", n)
	}
	if !eval[bool](c, `document.getElementById('lost').hidden`) {
		t.Error("the page reports that there is no answer")
	}
	if urls := c.text(`performance.getEntriesByType('resource').map(e => new URL(e.name).pathname).filter(p => p !== '/').join(' ')`); urls != "" {
		t.Errorf("it requests %s", urls)
	}
	must.Note(t, stage.Code(a, "/page.js", 404))

	a.Stop()
	c.eventually(`!document.getElementById('lost').hidden`)
	if text := c.text(`document.getElementById('lost').textContent`); !strings.HasPrefix(text, "No answer since ") {
		t.Errorf("it reports %q", text)
	}
}

// Text that a stranger chose is still only text. Here it is the path of what cannot be
// read.
func TestPageHostile(t *testing.T) {
	c := startChromium(t)
	const name = `<img src=x onerror="document.title='owned'"><script>document.title='owned'<|script>&amp;'` + "\u202e\n\"--><style>"
	proc := filepath.Join(t.TempDir(), name)
	must.OK(t, os.Mkdir(proc, 0o755))
	a := start(t, agent.Config{"evictionHard": map[string]string{}}, "--path.procfs", proc)
	for _, d := range devices {
		c.open(a.URL("/"), d)
		if title := c.text("document.title"); title != "a-node: unknown: MemoryPressure, PIDPressure" {
			t.Errorf("the title is %q", title)
		}
		for element, want := range map[string]int{"img": 0, "script": 1, "style": 1} {
			if n := eval[int](c, fmt.Sprintf("document.querySelectorAll(%q).length", element)); n != want {
				t.Errorf("%d elements %s", n, element)
			}
		}
		if text := c.text("document.querySelector('.errors').textContent"); !strings.Contains(text, `<img src=x onerror="document.title='owned'">`) {
			t.Errorf("the errors are %q", text)
		}
		c.check(d)
	}
}

package page

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
	"github.com/nodeprobe/nodeprobe/test/harness/wait"
)

// patience is how long anything may take that must happen.
const patience = 2 * time.Minute

// chromium is a headless browser with one tab. It speaks the DevTools protocol, JSON
// with a NUL after each message, over two pipes.
type chromium struct {
	t        *testing.T
	send     *os.File
	receive  *os.File
	messages *bufio.Reader // of receive
	session  string
	id       int    // of the last call
	loads    int    // of pages, so far
	console  string // what it has said since the page was opened
}

// object is a JSON object to send.
type object map[string]any

// startChromium skips the test where there is none: it takes 300 MB, so that only
// "make test-page" installs it, and no other run insists on it.
func startChromium(t *testing.T) *chromium {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("needs chromium (Debian package chromium; make test-page installs it)")
	}
	profile := must.Get(os.MkdirTemp("", "nodeprobe-chromium-"))(t) //nolint:usetesting // see below
	t.Cleanup(func() {
		// Its children outlive it for a moment, and write there.
		wait.Until(t, patience, "the profile is removed", func() error { return os.RemoveAll(profile) })
	})
	theirs, send, err := os.Pipe()
	must.OK(t, err)
	receive, theirEnd, err := os.Pipe()
	must.OK(t, err)
	defer theirs.Close()
	defer theirEnd.Close()
	browser := must.Get(process.Start(process.Spec{
		Path: path, LogFile: filepath.Join(t.TempDir(), "chromium.log"),
		Args: []string{
			"--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage",
			"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
			"--proxy-server=direct://", "--user-data-dir=" + profile, "--remote-debugging-pipe", "about:blank",
		},
		Files: []*os.File{theirs, theirEnd},
	}))(t)
	t.Cleanup(func() {
		browser.Stop(5 * time.Second)
		send.Close()
		receive.Close()
	})
	c := &chromium{t: t, send: send, receive: receive, messages: bufio.NewReader(receive)}
	var target struct{ TargetID string }
	c.call("Target.createTarget", object{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	c.call("Target.attachToTarget", object{"targetId": target.TargetID, "flatten": true}, &attached)
	c.session = attached.SessionID
	for _, domain := range []string{"Page", "Log", "Runtime"} {
		c.call(domain+".enable", object{}, &struct{}{})
	}
	return c
}

// read handles one message, and returns the result if it answers the last call.
func (c *chromium) read() (result json.RawMessage) {
	c.t.Helper()
	must.OK(c.t, c.receive.SetReadDeadline(time.Now().Add(patience)))
	text := must.Get(c.messages.ReadBytes(0))(c.t)
	var m struct {
		ID             int
		Method         string
		Params, Result json.RawMessage
		Error          *struct{ Message string }
	}
	must.OK(c.t, json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m))
	switch m.Method {
	case "Page.loadEventFired":
		c.loads++
	case "Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled":
		c.console += string(m.Params) + "\n"
	}
	if m.Error != nil {
		c.t.Fatalf("chromium: %s", m.Error.Message)
	}
	if m.ID != c.id {
		return nil
	}
	return m.Result
}

func (c *chromium) call(method string, params object, result any) {
	c.t.Helper()
	c.id++
	message := object{"id": c.id, "method": method, "params": params}
	if c.session != "" {
		message["sessionId"] = c.session
	}
	must.Get(c.send.Write(append(must.Get(json.Marshal(message))(c.t), 0)))(c.t)
	for {
		if text := c.read(); text != nil {
			must.OK(c.t, json.Unmarshal(text, result))
			return
		}
	}
}

// open makes the tab one of a device, and waits until it has loaded the page.
func (c *chromium) open(url string, d device) {
	c.t.Helper()
	c.call("Emulation.setDeviceMetricsOverride", object{"width": d.width, "height": d.height, "deviceScaleFactor": 1, "mobile": d.width < 600}, &struct{}{})
	scheme := "light"
	if d.dark {
		scheme = "dark"
	}
	c.call("Emulation.setEmulatedMedia", object{"features": []object{{"name": "prefers-color-scheme", "value": scheme}}}, &struct{}{})
	c.console = ""
	before := c.loads
	c.call("Page.navigate", object{"url": url}, &struct{}{})
	for c.loads == before {
		c.read()
	}
}

// eval returns the value of an expression of JavaScript.
func eval[T any](c *chromium, expression string) (value T) {
	c.t.Helper()
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	c.call("Runtime.evaluate", object{"expression": expression, "returnByValue": true, "awaitPromise": true}, &got)
	if got.ExceptionDetails != nil {
		c.t.Fatalf("%s: %s", expression, got.ExceptionDetails)
	}
	if err := json.Unmarshal(got.Result.Value, &value); err != nil {
		c.t.Fatalf("%s: %s: %v", expression, got.Result.Value, err)
	}
	return value
}

func (c *chromium) text(expression string) string {
	c.t.Helper()
	return eval[string](c, expression)
}

func (c *chromium) eventually(expression string) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); !eval[bool](c, "Boolean("+expression+")"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: not within %s", expression, patience)
		}
	}
}

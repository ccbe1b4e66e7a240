package page

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

// patience is how long anything may take that must happen.
const patience = 2 * time.Minute

// chromium is a headless browser with one tab. It is spoken to in the DevTools
// protocol, JSON with a NUL after each message, over two pipes.
type chromium struct {
	t       *testing.T
	process *process.Process
	send    *os.File
	session string

	mu       sync.Mutex // guards the rest
	id       int
	answers  map[int]chan answer
	loaded   chan struct{}
	problems []string // what the console has said
}

type answer struct {
	Result json.RawMessage
	Error  *struct{ Message string }
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
		for deadline := time.Now().Add(patience); os.RemoveAll(profile) != nil; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Errorf("%s cannot be removed", profile)
				return
			}
		}
	})
	theirs, send := pipe(t)
	receive, theirEnd := pipe(t)
	defer theirs.Close()
	defer theirEnd.Close()
	c := &chromium{t: t, send: send, answers: map[int]chan answer{}}
	c.process, err = process.Start(process.Spec{
		Path: path, LogFile: filepath.Join(t.TempDir(), "chromium.log"),
		Args: []string{
			"--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage",
			"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
			"--proxy-server=direct://", "--user-data-dir=" + profile, "--remote-debugging-pipe", "about:blank",
		},
		Files: []*os.File{theirs, theirEnd},
	})
	must.OK(t, err)
	go c.receive(receive)
	t.Cleanup(func() {
		c.process.Stop(5 * time.Second)
		send.Close()
		receive.Close()
	})
	c.openTab()
	return c
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	must.OK(t, err)
	return r, w
}

func (c *chromium) receive(from *os.File) {
	messages := bufio.NewReader(from)
	for {
		text, err := messages.ReadBytes(0)
		if err != nil {
			return
		}
		var m struct {
			ID     int
			Method string
			Params json.RawMessage
			answer
		}
		if err := json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m); err != nil {
			continue
		}
		c.mu.Lock()
		switch m.Method {
		case "":
			if waiting := c.answers[m.ID]; waiting != nil {
				delete(c.answers, m.ID)
				waiting <- m.answer
			}
		case "Page.loadEventFired":
			if c.loaded != nil {
				close(c.loaded)
				c.loaded = nil
			}
		case "Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled":
			c.problems = append(c.problems, string(m.Params))
		}
		c.mu.Unlock()
	}
}

func (c *chromium) call(method string, params object, result any) {
	c.t.Helper()
	message := object{"method": method}
	if params != nil {
		message["params"] = params
	}
	if c.session != "" {
		message["sessionId"] = c.session
	}
	c.mu.Lock()
	c.id++
	message["id"] = c.id
	answered := make(chan answer, 1)
	c.answers[c.id] = answered
	c.mu.Unlock()

	text := must.Get(json.Marshal(message))(c.t)
	if _, err := c.send.Write(append(text, 0)); err != nil {
		c.t.Fatalf("%s: %v", method, err)
	}
	select {
	case a := <-answered:
		if a.Error != nil {
			c.t.Fatalf("%s: %s", method, a.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(a.Result, result); err != nil {
				c.t.Fatalf("%s: %v", method, err)
			}
		}
	case <-c.process.Exited():
		c.t.Fatalf("%s: chromium has ended", method)
	case <-time.After(patience):
		c.t.Fatalf("%s: no answer within %s", method, patience)
	}
}

func (c *chromium) openTab() {
	c.t.Helper()
	var target struct{ TargetID string }
	c.call("Target.createTarget", object{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	c.call("Target.attachToTarget", object{"targetId": target.TargetID, "flatten": true}, &attached)
	c.session = attached.SessionID
	for _, domain := range []string{"Page", "Log", "Runtime"} {
		c.call(domain+".enable", nil, nil)
	}
}

// screen makes the tab one of that many pixels, that likes dark pages or not.
func (c *chromium) screen(width, height int, dark bool) {
	c.t.Helper()
	c.call("Emulation.setDeviceMetricsOverride", object{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	c.call("Emulation.setEmulatedMedia", object{"features": []object{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

func (c *chromium) open(url string) {
	c.t.Helper()
	loaded := make(chan struct{})
	c.mu.Lock()
	c.loaded, c.problems = loaded, nil
	c.mu.Unlock()
	c.call("Page.navigate", object{"url": url}, nil)
	select {
	case <-loaded:
	case <-time.After(patience):
		c.t.Fatalf("%s is not loaded within %s", url, patience)
	}
}

func (c *chromium) eval(expression string, result any) {
	c.t.Helper()
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	c.call("Runtime.evaluate", object{"expression": expression, "returnByValue": true, "awaitPromise": true}, &got)
	if got.ExceptionDetails != nil {
		c.t.Fatalf("%s: %s", expression, got.ExceptionDetails)
	}
	if err := json.Unmarshal(got.Result.Value, result); err != nil {
		c.t.Fatalf("%s: %s: %v", expression, got.Result.Value, err)
	}
}

func (c *chromium) number(expression string) (n float64) {
	c.t.Helper()
	c.eval(expression, &n)
	return n
}

func (c *chromium) text(expression string) (text string) {
	c.t.Helper()
	c.eval(expression, &text)
	return text
}

func (c *chromium) eventually(expression string) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		var is bool
		if c.eval("Boolean("+expression+")", &is); is {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: not within %s", expression, patience)
		}
	}
}

// said returns what the page's console says since it was opened.
func (c *chromium) said() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.problems, "\n")
}

func (c *chromium) screenshot() []byte {
	c.t.Helper()
	var shot struct{ Data string }
	c.call("Page.captureScreenshot", object{"captureBeyondViewport": true}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		c.t.Fatal(fmt.Errorf("decode screenshot: %w", err))
	}
	return png
}

package rootfs

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"
	"golang.org/x/sys/unix"
)

// Where the node's root is mounted in a container, links lead where they lead on the
// node.
func TestLinksLeadWhereTheyDoOnTheNode(t *testing.T) {
	n := probetest.NewRoot(t)
	n.Write(t, "data/kubelet/x", "text")
	n.Write(t, "usr/lib/real", "")
	for name, target := range map[string]string{
		"var/lib/kubelet": "/data/kubelet",
		"etc/os-release":  "/usr/lib/real",
		"up":              "../../../../data",
		"outside":         "/etc", // exists on the test's machine, and lacks passwd on the node
		"dangling":        "/nowhere",
		"loop":            "/loop",
	} {
		n.Link(t, target, name)
	}
	for path, want := range map[string]string{
		"/var/lib/kubelet": "data/kubelet",
		"/etc/os-release":  "usr/lib/real",
		"/up/kubelet":      "data/kubelet",
		"/data/../data":    "data",
		"/":                "",
	} {
		if got, err := Path(n.Dir, path); got != n.Path(want) || err != nil {
			t.Errorf("Path(%s): %s, %v; want %s", path, got, err, n.Path(want))
		}
		if got, err := Resolve(n.Dir, path); got != "/"+want || err != nil {
			t.Errorf("Resolve(%s): %s, %v; want /%s", path, got, err, want)
		}
	}
	for path, want := range map[string]error{
		"/dangling": unix.ENOENT, "/outside/passwd": unix.ENOENT, "/loop": unix.ELOOP, "/usr/lib/real/x": unix.ENOTDIR,
	} {
		for name, f := range map[string]func(string, string) (string, error){"Path": Path, "Resolve": Resolve} {
			got, err := f(n.Dir, path)
			probetest.CheckError(t, err, want)
			if err != nil && !strings.Contains(err.Error(), n.Path(path)) {
				t.Errorf("%s(%s): %s, %v does not name the path", name, path, got, err)
			}
		}
	}
	if b, err := ReadFile(n.Dir, "/var/lib/kubelet/x"); string(b) != "text" || err != nil {
		t.Errorf("ReadFile: %q, %v", b, err)
	}
}

func TestWithoutContainer(t *testing.T) {
	n := probetest.NewRoot(t)
	n.Write(t, "real", "")
	n.Link(t, "real", "link")
	if got, err := Path("/", "/no/such"); got != "/no/such" || err != nil {
		t.Errorf("Path: %s, %v", got, err)
	}
	if got, err := Resolve("/", n.Path("link")); got != n.Path("real") || err != nil {
		t.Errorf("Resolve: %s, %v", got, err)
	}
}

// A root that does not exist must not pass for a path that does not.
func TestNoRoot(t *testing.T) {
	absent := probetest.NewRoot(t).Path("absent")
	if _, err := Path(absent, "/"); err == nil {
		t.Error("Path: no error")
	}
	if _, err := Resolve(absent, "/"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Resolve: %v", err)
	}
}

func TestWithin(t *testing.T) {
	n := probetest.NewRoot(t)
	n.Write(t, "a/b", "")
	n.Write(t, "ab", "")
	open := func(name string) int {
		t.Helper()
		fd, err := unix.Open(n.Path(name), unix.O_PATH|unix.O_CLOEXEC, 0)
		probetest.Must(t, err)
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	for _, test := range []struct{ dir, file, want string }{
		{"a", "a/b", "/b"}, {"", "a/b", "/a/b"}, {"a", "a", "/"}, {"a", "ab", ""}, {"a", "", ""},
	} {
		got, err := Within(open(test.dir), open(test.file))
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%q in %q: %q, %v; want %q", test.file, test.dir, got, err, test.want)
		}
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	probetest.Must(t, err)
	defer unix.Close(root)
	if got, err := Within(root, open("ab")); got != n.Path("ab") || err != nil {
		t.Errorf("in /: %q, %v", got, err)
	}
}

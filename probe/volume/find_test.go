package volume

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"
	"github.com/nodeprobe/nodeprobe/probe/mount"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestVolumeDataFile(t *testing.T) {
	for point, want := range map[string]string{
		"disk.example.com/0f3c/globalmount":       "disk.example.com/0f3c/vol_data.json",
		"pv/pvc-1/globalmount":                    "pv/pvc-1/vol_data.json",
		"pv/pvc-1/globalmount/deeper":             "",
		"pv/globalmount":                          "",
		"pv/pvc-1/other":                          "",
		"volumeDevices/staging/pvc-1":             "volumeDevices/pvc-1/data/vol_data.json",
		"volumeDevices/staging/pvc-1/uid":         "volumeDevices/pvc-1/data/vol_data.json",
		"volumeDevices/publish/pvc-1/uid":         "volumeDevices/pvc-1/data/vol_data.json",
		"volumeDevices/pvc-1/dev/uid":             "volumeDevices/pvc-1/data/vol_data.json",
		"volumeDevices/pvc-1/data":                "",
		"volumeDevices/publish":                   "",
		"":                                        "",
		"a":                                       "",
		"disk.example.com/with blank/globalmount": "disk.example.com/with blank/vol_data.json",
	} {
		if got := stagedData(point); got != want {
			t.Errorf("staged at %q: got %q, want %q", point, got, want)
		}
	}
	for point, want := range map[string]string{
		"uid/volumes/kubernetes.io~csi/pvc-1/mount":          "uid/volumes/kubernetes.io~csi/pvc-1/vol_data.json",
		"uid/volumes/kubernetes.io~csi/pvc-1/mount/sub":      "",
		"uid/volumes/kubernetes.io~csi/pvc-1":                "",
		"uid/volumes/kubernetes.io~projected/token":          "",
		"uid/volumes/kubernetes.io~nfs/pvc-1/mount":          "",
		"uid/volume-subpaths/kubernetes.io~csi/pvc-1/mount":  "",
		"uid/volumeDevices/kubernetes.io~csi/pvc-1/whatever": "",
	} {
		if got := podData(point); got != want {
			t.Errorf("in a pod at %q: got %q, want %q", point, got, want)
		}
	}
}

const diskA = `{"driverName":"disk.example.com","volumeHandle":"a"}`

// A vol_data.json may be anything, and is read without waiting.
func TestReadVolume(t *testing.T) {
	text := func(content string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(content), 0o600) }
	}
	for _, test := range []struct {
		name string
		make func(path string) error
		want Volume
		none bool
		err  string
	}{
		{name: "volume", make: text(diskA + "\n"), want: Volume{"disk.example.com", "a"}},
		{
			name: "in a pod", want: Volume{"disk.example.com", "a^b"},
			make: text(`{"attachmentID":"csi-1","driverName":"disk.example.com","volumeHandle":"a^b","volumeLifecycleMode":"Persistent"}`),
		},
		{
			name: "ephemeral", want: Volume{"disk.example.com", "csi-1"}, none: true,
			make: text(`{"driverName":"disk.example.com","volumeHandle":"csi-1","volumeLifecycleMode":"Ephemeral"}`),
		},
		{name: "nothing there", make: func(string) error { return nil }, err: "read PATH: no such file or directory"},
		{name: "empty", make: text(""), err: "read volume from PATH: unexpected end of JSON input"},
		{name: "cut off", make: text(diskA[:20]), err: "read volume from PATH: unexpected end of JSON input"},
		{name: "two", make: text(diskA + diskA), err: "read volume from PATH: invalid character '{' after top-level value"},
		{name: "garbage", make: text("\x00\xff"), err: `read volume from PATH: invalid character '\x00' looking for beginning of value`},
		{name: "list", make: text("[]"), err: "read volume from PATH: json: cannot unmarshal array into Go value of type struct { Driver string \"json:\\\"driverName\\\"\"; Handle string \"json:\\\"volumeHandle\\\"\"; Lifecycle string \"json:\\\"volumeLifecycleMode\\\"\" }"},
		{name: "no handle", make: text(`{"driverName":"d"}`), err: "read volume from PATH: driverName or volumeHandle is missing"},
		{name: "no driver", make: text(`{"volumeHandle":"d"}`), err: "read volume from PATH: driverName or volumeHandle is missing"},
		{name: "as long as may be", make: text(diskA + strings.Repeat(" ", maxData-len(diskA))), want: Volume{"disk.example.com", "a"}},
		{name: "too long", make: text(diskA + strings.Repeat(" ", maxData)), err: "read PATH: longer than 64 KiB"},
		{name: "sparse and huge", make: func(path string) error {
			return errors.Join(text("")(path), os.Truncate(path, 1<<40))
		}, err: "read PATH: longer than 64 KiB"},
		{name: "FIFO", make: func(path string) error { return unix.Mkfifo(path, 0o600) }, err: "read PATH: not a regular file"},
		{name: "directory", make: func(path string) error { return os.Mkdir(path, 0o700) }, err: "read PATH: not a regular file"},
		{name: "symbolic link", make: func(path string) error {
			return errors.Join(text(diskA)(path+".there"), os.Symlink(path+".there", path))
		}, err: "read PATH: not a regular file"},
		{name: "link to a FIFO", make: func(path string) error {
			return errors.Join(unix.Mkfifo(path+".there", 0o600), os.Symlink(path+".there", path))
		}, err: "read PATH: not a regular file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), dataFile)
			probetest.Must(t, test.make(path))
			got, ok, err := readVolume(path)
			if text := strings.ReplaceAll(probetest.ErrText(err), path, "PATH"); text != test.err {
				t.Fatalf("error %s, want %s", text, test.err)
			}
			if err == nil && (got != test.want || ok == test.none) {
				t.Errorf("got %+v, %v; want %+v", got, ok, test.want)
			}
		})
	}
}

// newNode makes a node with an empty kubelet directory.
func newNode(t *testing.T) probetest.Root {
	n := probetest.NewRoot(t)
	probetest.Must(t, os.MkdirAll(n.Path("var/lib/kubelet"), 0o755))
	return n
}

// volumesOf returns what a fresh look finds.
func volumesOf(t *testing.T, cfg Config) ([]Volume, error) {
	t.Helper()
	s, err := New(cfg)
	probetest.Must(t, err)
	found := s.look(nil)
	return found.volumes, found.err
}

// TestRealVolumes has the kernel mount what a kubelet would.
func TestRealVolumes(t *testing.T) {
	root := t.TempDir()
	kubelet := filepath.Join(root, "var lib", "kubelet")
	link := filepath.Join(root, "link")
	probetest.Must(t, os.Symlink("var lib/kubelet", link))
	at := func(name string) string { return filepath.Join(kubelet, name) }
	write := func(name, text string) error {
		return errors.Join(os.MkdirAll(filepath.Dir(at(name)), 0o700), os.WriteFile(at(name), []byte(text), 0o600))
	}
	data := func(handle string) string {
		return `{"driverName":"disk.example.com","volumeHandle":"` + handle + `"}`
	}
	tmpfs := func(name string) error {
		return errors.Join(os.MkdirAll(at(name), 0o700), unix.Mount("none", at(name), "tmpfs", 0, "size=64k"))
	}
	// A block device is a file that is mounted on a file.
	device := func(name string) error {
		return errors.Join(write("device", ""), write(name, ""), unix.Mount(at("device"), at(name), "", unix.MS_BIND, ""))
	}
	const csi, pods = stagedDirectory + "/", podsDirectory + "/"
	probetest.InMountNamespace(t, func(proc string) error {
		config := Config{Procfs: proc, Rootfs: "/", RootDirectory: kubelet}
		check := func(name string, want ...string) {
			t.Helper()
			ways := map[string]Config{name: config}
			config := config
			config.RootDirectory = link
			ways[name+", by a link"] = config
			config.Rootfs, config.RootDirectory = root, "/link"
			ways[name+", from our own namespace"] = config
			for name, config := range ways {
				volumes, err := volumesOf(t, config)
				var got []string
				for _, v := range volumes {
					got = append(got, v.String())
				}
				if d := cmp.Diff(want, got); d != "" || err != nil {
					t.Errorf("%s: %v (-want +got):\n%s", name, err, d)
				}
			}
		}
		probetest.Must(t, write("not yet", ""))
		check("before the first")
		probetest.Must(t, errors.Join(
			write(csi+"disk.example.com/0f/vol_data.json", data("staged")), tmpfs(csi+"disk.example.com/0f/globalmount"),
			write(pods+"uid/volumes/kubernetes.io~csi/pvc-1/vol_data.json", data("staged")), tmpfs(pods+"uid/volumes/kubernetes.io~csi/pvc-1/mount"),
			write(csi+"pv/old one/vol_data.json", data("old")), tmpfs(csi+"pv/old one/globalmount"),
			write(pods+"uid/volumes/kubernetes.io~csi/pvc-2/vol_data.json", data("not-staged")), tmpfs(pods+"uid/volumes/kubernetes.io~csi/pvc-2/mount"),
			write(csi+"volumeDevices/pvc-3/data/vol_data.json", data("block")), device(csi+"volumeDevices/publish/pvc-3/uid"),
			write(csi+"volumeDevices/pvc-4/data/vol_data.json", data("mapped")), device(csi+"volumeDevices/pvc-4/dev/uid"),
			write(csi+"disk.example.com/1a/vol_data.json", data("not-mounted")), os.MkdirAll(at(csi+"disk.example.com/1a/globalmount"), 0o700),
			tmpfs(pods+"uid/volumes/kubernetes.io~projected/token"),
		))
		all := []string{"disk.example.com^block", "disk.example.com^mapped", "disk.example.com^not-staged", "disk.example.com^old", "disk.example.com^staged"}
		check("all", all...)
		probetest.Must(t, errors.Join(tmpfs(csi+"disk.example.com/0f/globalmount"), tmpfs("plugins")))
		// What is hidden is in use all the same.
		if _, err := volumesOf(t, config); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("hidden: error %v", err)
		}
		probetest.Must(t, errors.Join(unix.Unmount(at("plugins"), 0), unix.Unmount(at(csi+"disk.example.com/0f/globalmount"), 0)))
		check("all again", all...)
		probetest.Must(t, errors.Join(unix.Unmount(at(csi+"disk.example.com/0f/globalmount"), 0), unix.Unmount(at(csi+"volumeDevices/publish/pvc-3/uid"), 0)))
		check("still in a pod", "disk.example.com^mapped", "disk.example.com^not-staged", "disk.example.com^old", "disk.example.com^staged")
		probetest.Must(t, unix.Unmount(at(pods+"uid/volumes/kubernetes.io~csi/pvc-1/mount"), 0))
		check("gone", "disk.example.com^mapped", "disk.example.com^not-staged", "disk.example.com^old")
		return nil
	})
}

// The directories that volumes are mounted in come when they are first needed, in
// any order, and may be hidden before anybody has looked.
func TestRealVolumesInDirectoriesThatComeLater(t *testing.T) {
	const (
		staged = stagedDirectory + "/disk.example.com/0f/globalmount"
		inPod  = podsDirectory + "/uid/volumes/kubernetes.io~csi/pvc-1/mount"
	)
	for _, test := range []struct {
		name  string
		steps []string // a look after each; what is mounted, or "hide", and where
		want  []int    // how many volumes are in use then
	}{
		{"a driver that does not stage", []string{inPod}, []int{1}},
		{"pods first", []string{podsDirectory + "/uid/x", inPod}, []int{0, 1}},
		{"staging first", []string{stagedDirectory + "/x", inPod}, []int{0, 1}},
		{"both, pods last", []string{staged, inPod}, []int{1, 2}},
		{"both, pods first", []string{inPod, staged}, []int{1, 2}},
		{"hidden before the next look", []string{inPod + " hide pods"}, []int{1}},
		{"all of it hidden before the next look", []string{staged + " hide plugins"}, []int{1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			probetest.Must(t, os.Symlink("var/lib/kubelet", filepath.Join(root, "link")))
			probetest.Must(t, os.MkdirAll(filepath.Join(root, "var/lib"), 0o700))
			at := func(name string) string { return filepath.Join(root, "var/lib/kubelet", name) }
			tmpfs := func(name string) error {
				return errors.Join(os.MkdirAll(at(name), 0o700), unix.Mount("none", at(name), "tmpfs", 0, "size=64k"))
			}
			probetest.InMountNamespace(t, func(proc string) error {
				finders := map[string]*finder{
					"by its path":            newFinder(proc, "/", at("")),
					"by a link":              newFinder(proc, "/", filepath.Join(root, "link")),
					"from our own namespace": newFinder(proc, root, "/link"),
				}
				check := func(after string, want int) {
					t.Helper()
					for way, f := range finders {
						if got, err := f.mounts(); err != nil || len(got) != want {
							t.Errorf("%s, after %s: %d mounts, %v; want %d", way, after, len(got), err, want)
						}
					}
				}
				check("nothing", 0)
				for i, step := range test.steps {
					point, hidden, hide := strings.Cut(step, " hide ")
					if strings.HasSuffix(point, "/x") {
						probetest.Must(t, os.MkdirAll(at(point), 0o700))
					} else {
						probetest.Must(t, tmpfs(point))
					}
					if hide {
						probetest.Must(t, tmpfs(hidden))
					}
					check(step, test.want[i])
				}
				return nil
			})
		})
	}
}

// Where the node is seen through rootfs, its links lead to where they do on the
// node, and its mount table has its own paths.
func TestVolumesInContainer(t *testing.T) {
	n := newNode(t)
	probetest.Must(t, errors.Join(
		os.RemoveAll(n.Path("var/lib/kubelet")), os.MkdirAll(n.Path("data/kubelet"), 0o755),
		os.Symlink("/data/kubelet", n.Path("var/lib/kubelet")),
	))
	n.Write(t, "data/kubelet/plugins/kubernetes.io/csi/d/1/vol_data.json", diskA)
	const point = "/plugins/kubernetes.io/csi/d/1/globalmount rw - ext4 /dev/sdb rw\n"
	cfg := Config{Procfs: n.Path("proc"), Rootfs: n.Dir, RootDirectory: "/var/lib/kubelet"}
	for _, test := range []struct {
		name, table string
		want        int
	}{
		{"the node's table", "2 1 8:2 / /data/kubelet" + point, 1},
		{"our own table", "2 1 8:2 / " + n.Path("data/kubelet") + point, 1},
		{"another directory", "2 1 8:2 / /data/kubelet2" + point, 0},
	} {
		n.Write(t, "proc/1/mountinfo", "1 1 8:1 / / rw - ext4 /dev/sda rw\n"+test.table)
		volumes, err := volumesOf(t, cfg)
		if err != nil || len(volumes) != test.want {
			t.Errorf("%s: %v, %v; want %d", test.name, volumes, err, test.want)
		}
	}
}

// A link that leads elsewhere unmounts nothing.
func TestVolumesAfterTheDirectoryMoved(t *testing.T) {
	n := newNode(t)
	probetest.Must(t, os.RemoveAll(n.Path("var/lib/kubelet")))
	f := newFinder(n.Path("proc"), n.Dir, "/var/lib/kubelet")
	const point = "/pods/uid/volumes/kubernetes.io~csi/pvc/mount rw - ext4 /dev/sdb rw\n"
	table := "1 1 8:1 / / rw - ext4 /dev/sda rw\n"
	for i, dir := range []string{"data", "new"} {
		probetest.Must(t, os.MkdirAll(n.Path(dir+"/pods"), 0o755))
		probetest.Must(t, errors.Join(os.RemoveAll(n.Path("var/lib/kubelet")), os.Symlink("/"+dir, n.Path("var/lib/kubelet"))))
		table += "2 1 8:2 / /" + dir + point
		n.Write(t, "proc/1/mountinfo", table)
		if mounts, err := f.mounts(); err != nil || len(mounts) != i+1 {
			t.Errorf("at %s: %v, %v; want %d", dir, mounts, err, i+1)
		}
	}
}

func TestVolumesThatCannotBeFound(t *testing.T) {
	n := newNode(t)
	cfg := Config{Procfs: n.Path("proc"), Rootfs: n.Dir, RootDirectory: "/var/lib/kubelet"}
	n.Write(t, "proc/1/mountinfo", "1 1 8:1 / / rw - ext4 /dev/sda rw\n")
	f := newFinder(cfg.Procfs, cfg.Rootfs, cfg.RootDirectory)
	if mounts, err := f.mounts(); err != nil || mounts != nil {
		t.Errorf("no directory: %v, %v", mounts, err)
	}
	n.Remove(t, "proc/1")
	_, err := f.mounts()
	probetest.CheckError(t, err, fs.ErrNotExist) // a directory that is hidden looks like none
	n.Write(t, "var/lib/kubelet/plugins/kubernetes.io/csi/x", "")
	n.Write(t, "proc/self/mountinfo", "1 1 8:1 / / rw - ext4 /dev/sda rw\n")
	_, err = volumesOf(t, cfg)
	probetest.CheckError(t, err, fs.ErrNotExist) // our own table is another's
	for table, want := range map[string]error{"1 1 8:1\n": mount.ErrFields, strings.Repeat("x", 1<<20+1): nil} {
		n.Write(t, "proc/1/mountinfo", table)
		if _, err := volumesOf(t, cfg); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("table %.10q: error %v, want %v", table, err, want)
		}
	}
	cfg.Rootfs = n.Path("nowhere")
	if _, err := volumesOf(t, cfg); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no rootfs: error %v", err)
	}
	n.Write(t, "var/lib/loop", "")
	n.Remove(t, "var/lib/loop")
	probetest.Must(t, os.Symlink("loop", n.Path("var/lib/loop")))
	cfg.Rootfs, cfg.RootDirectory = n.Dir, "/var/lib/loop"
	_, err = volumesOf(t, cfg)
	probetest.CheckError(t, err, unix.ELOOP)
}

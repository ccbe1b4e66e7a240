package mount

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// The mount table of a node, abridged.
const nodeTable = `22 27 0:21 / /proc rw,relatime shared:5 - proc proc rw
27 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro
40 27 254:16 / /var/lib/kubelet rw,noatime shared:2 - xfs /dev/vdb rw,attr2
41 40 0:50 / /var/lib/kubelet/pods/1/volumes/a\040b\134c\043 rw shared:7 master:3 propagate_from:2 - tmpfs  rw,size=64k
42 27 254:32 /images /var/lib/containerd ro,nosuid shared:4 - ext4 /dev/vdc rw
43 27 254:48 / /data rw unbindable - ext4 /dev/vdd rw,emergency_ro
44 27 0:60 / /hidden/deep rw - tmpfs deep rw
45 27 0:61 / /hidden rw - tmpfs top ro
46 45 0:62 / /hidden rw - fuse.sshfs me@host:/x\011y rw,user id=0
`

// The same in a container that has the node's root at /host/root.
const containerTable = `500 499 0:70 / / rw - overlay overlay rw,lowerdir=/a:/b
501 500 0:71 / /proc rw - proc proc rw
510 500 254:1 / /host/root ro,relatime master:1 - ext4 /dev/vda1 rw,errors=remount-ro
511 510 254:16 / /host/root/var/lib/kubelet ro,noatime master:2 - xfs /dev/vdb rw
`

// findOne is find for one path.
func findOne(table io.Reader, rootfs, path string) (Info, error) {
	found, err := find(table, rootfs, []string{path})
	return found[0], err
}

// Several paths take one look at the table, whether it is the node's or our own.
func TestFindAll(t *testing.T) {
	for rootfs, table := range map[string]string{"/": nodeTable, "/host/root": containerTable} {
		root := probetest.NewRoot(t)
		root.Write(t, "proc/1/mountinfo", table)
		paths := []string{"/var/lib/kubelet/pods", "", "/etc", "/var/lib/kubelet"}
		got, err := FindAll(root.Path("proc"), rootfs, paths...)
		probetest.Must(t, err)
		for i, path := range paths {
			var want Info
			if path != "" {
				want, err = Find(root.Path("proc"), rootfs, path)
				probetest.Must(t, err)
			}
			if got[i] != want {
				t.Errorf("%q below %s: %+v, want %+v", path, rootfs, got[i], want)
			}
		}
	}
	// One that no mount holds costs itself only.
	got, err := find(strings.NewReader("20 1 8:1 / /mnt rw - ext4 /dev/sda rw\n"), "/", []string{"/etc", "/mnt/x"})
	if !errors.Is(err, fs.ErrNotExist) || got[0] != (Info{}) || got[1].ID != 20 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestFindInTable(t *testing.T) {
	for _, test := range []struct {
		table, rootfs, path string
		want                string
		ro                  string
	}{
		{nodeTable, "/", "/", "27 / ext4 /dev/vda1", ""},
		{nodeTable, "/", "/etc/hosts", "27 / ext4 /dev/vda1", ""},
		{nodeTable, "/", "/var/lib/kubelet", "40 /var/lib/kubelet xfs /dev/vdb", ""},
		{nodeTable, "/host/root", "/var/lib/kubelet/", "40 /var/lib/kubelet xfs /dev/vdb", ""},
		{nodeTable, "/", "/var/lib/kubelet-old", "27 / ext4 /dev/vda1", ""},
		{nodeTable, "/", "/var/lib/kubelet/../kubelet/pods", "40 /var/lib/kubelet xfs /dev/vdb", ""},
		{nodeTable, "/", `/var/lib/kubelet/pods/1/volumes/a b\c#/x`, `41 /var/lib/kubelet/pods/1/volumes/a b\c# tmpfs `, ""},
		{nodeTable, "/", "/var/lib/containerd/io", "42 /var/lib/containerd ext4 /dev/vdc", "ro"},
		{nodeTable, "/", "/data", "43 /data ext4 /dev/vdd", "emergency_ro"},
		// A later mount on /hidden hides the one below, and has one on top.
		{nodeTable, "/", "/hidden/deep", "46 /hidden fuse.sshfs me@host:/x\ty", ""},

		{containerTable, "/host/root", "/var/lib/kubelet", "511 /host/root/var/lib/kubelet xfs /dev/vdb", "ro"},
		{containerTable, "/host/root", "/", "510 /host/root ext4 /dev/vda1", "ro"},
		{containerTable, "/", "/var/lib/kubelet", "500 / overlay overlay", ""},

		// Before Linux 3.x or so, the root that the initramfs was shows too.
		{"1 1 0:1 / / rw - rootfs rootfs rw\n20 1 8:1 / / rw - ext4 /dev/sda rw\n", "/", "/x", "20 / ext4 /dev/sda", ""},
		{"20 1 8:1 / / rw - ext4 /dev/sda rw,shutdown", "/", "/", "20 / ext4 /dev/sda", "shutdown"},
	} {
		m, err := findOne(strings.NewReader(test.table), test.rootfs, test.path)
		if err != nil {
			t.Errorf("%s in %s: %v", test.path, test.rootfs, err)
			continue
		}
		option, ro := m.ReadOnly()
		got := fmt.Sprintf("%d %s %s %s", m.ID, m.MountPoint, m.FSType, m.Source)
		if got != test.want || option != test.ro || ro != (option != "") {
			t.Errorf("%s in %s: got %q, read-only %q %t; want %q, %q", test.path, test.rootfs, got, option, ro, test.want, test.ro)
		}
	}
}

func TestParse(t *testing.T) {
	got, err := parse([]byte(`46 45 8:17 /a\040dir /mnt rw,nosuid shared:3 master:1 - fuse.sshfs me@host:/x\011y rw,user id=0`))
	probetest.Must(t, err)
	want := Info{
		ID: 46, Parent: 45, Major: 8, Minor: 17, Root: "/a dir", MountPoint: "/mnt",
		Options: "rw,nosuid", SuperOptions: "rw,user id=0", FSType: "fuse.sshfs", Source: "me@host:/x\ty",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFindErrors(t *testing.T) {
	for _, test := range []struct{ table, want string }{
		{"", "no mount holds it: file does not exist"},
		{"20 1 8:1 / /mnt rw - ext4 /dev/sda rw\n", "no mount holds it: file does not exist"},
		{"nonsense\n", `line "nonsense": too few fields`},
		{"20 1 8:1 / / rw\n", `line "20 1 8:1 / / rw": too few fields`},
		{"20 1 8:1 / / rw - ext4 /dev/sda\n", `line "20 1 8:1 / / rw - ext4 /dev/sda": too few fields`},
		{"20 1 8:1 / / rw a b c d\n", `line "20 1 8:1 / / rw a b c d": too few fields`},
		{"x 1 8:1 / / rw - ext4 /dev/sda rw\n", `line "x 1 8:1 / / rw - ext4 /dev/sda rw": strconv.ParseUint: parsing "x": invalid syntax`},
		{"20 1 81 / / rw - ext4 /dev/sda rw\n", `line "20 1 81 / / rw - ext4 /dev/sda rw": not a device number`},
		{"20 1 8:4294967296 / / rw - ext4 a rw\n", `line "20 1 8:4294967296 / / rw - ext4 a rw": strconv.ParseUint: parsing "4294967296": value out of range`},
		{"20 20 8:1 / /x rw - ext4 a rw\n21 20 8:1 / /y", `line "21 20 8:1 / /y": too few fields`},
	} {
		_, err := findOne(strings.NewReader(test.table), "/", "/srv")
		if probetest.ErrText(err) != test.want {
			t.Errorf("%q: got %v, want %s", test.table, err, test.want)
		}
	}
	if _, err := Find("/proc", "/", "etc"); err == nil {
		t.Error("a relative path was found")
	}
	if _, err := Find(t.TempDir(), "/", "/etc"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no procfs: got %v, want fs.ErrNotExist", err)
	}
}

// Every layer of an overlay adds to one line, and every pod adds lines.
func TestFindHuge(t *testing.T) {
	var table bytes.Buffer
	table.WriteString("27 1 254:1 / / rw - ext4 /dev/vda1 rw\n")
	for i := range 20_000 {
		fmt.Fprintf(&table, "%d 27 0:%d / /run/pods/%d rw - overlay overlay rw,lowerdir=/layer\n", 100+i, i, i)
	}
	fmt.Fprintf(&table, "28 27 0:9 / /srv rw - overlay overlay rw,lowerdir=%s,ro\n", strings.Repeat("/layer:", 30_000))
	m, err := findOne(bytes.NewReader(table.Bytes()), "/", "/srv/x")
	if err != nil || m.ID != 28 {
		t.Fatalf("got mount %d, %v; want 28", m.ID, err)
	}
	if _, ro := m.ReadOnly(); !ro {
		t.Error("the last option was lost")
	}
	table.WriteString(strings.Repeat("x", maxLine))
	if _, err := findOne(bytes.NewReader(table.Bytes()), "/", "/srv/x"); err == nil {
		t.Error("a line of more than 1 MiB was read")
	}
}

// TestFindAgainstKernel compares with what the kernel itself says of a path,
// and prometheus/procfs of the lines.
func TestFindAgainstKernel(t *testing.T) {
	dir := t.TempDir()
	probetest.InMountNamespace(t, func(proc string) error {
		// Some names, a mount on a mount, one that hides another, and a bind.
		var paths []string
		at := func(name string) string {
			path := filepath.Join(dir, name)
			paths = append(paths, path, filepath.Join(path, "x"))
			if err := os.MkdirAll(path, 0o700); err != nil {
				t.Error(err)
			}
			return path
		}
		for i, name := range []string{"a b", "a b/c#\\\n\t", "a b", "d/e/f", "d", "d/e/f", "d/e", "ümlaut"} {
			source := fmt.Sprint("test ", i)
			if i == 3 {
				source = ""
			}
			if err := unix.Mount(source, at(name), "tmpfs", 0, ""); err != nil {
				return err
			}
		}
		if err := unix.Mount(filepath.Join(dir, "d"), at("bind"), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
		procMounts, err := procfs.NewFS(proc)
		if err != nil {
			return err
		}
		listed, err := procMounts.GetProcMounts(1)
		if err != nil {
			return err
		}
		byID := map[int]*procfs.MountInfo{}
		for _, m := range listed {
			byID[m.MountID] = m
			if !strings.Contains(m.MountPoint, `\`) { // which that library leaves as it is
				paths = append(paths, m.MountPoint)
			}
		}
		for _, path := range paths {
			os.Mkdir(path, 0o700)
			var st unix.Statx_t
			if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st); err != nil {
				return fmt.Errorf("statx %s: %w", path, err)
			}
			if st.Mask&unix.STATX_MNT_ID == 0 {
				t.Skip("statx tells mount IDs from Linux 5.8 on")
			}
			m, err := Find(proc, "/", path)
			if err != nil {
				return err
			}
			if uint64(m.ID) != st.Mnt_id || m.FSType != "btrfs" && (m.Major != st.Dev_major || m.Minor != st.Dev_minor) {
				t.Errorf("%q: got mount %d of %d:%d, the kernel says %d of %d:%d", path, m.ID, m.Major, m.Minor, st.Mnt_id, st.Dev_major, st.Dev_minor)
			}
			l := byID[m.ID]
			if l.ParentID != m.Parent || l.FSType != m.FSType || l.MajorMinorVer != fmt.Sprintf("%d:%d", m.Major, m.Minor) {
				t.Errorf("%q: got %+v, prometheus/procfs has %+v", path, m, l)
			}
		}
		return nil
	})
}

// TestFindEmergency has ext4 give up for real.
func TestFindEmergency(t *testing.T) {
	for _, tool := range []string{"mkfs.ext4", "mount"} {
		if _, err := exec.LookPath(tool); err != nil {
			probetest.Lacking(t, "%v", err)
		}
	}
	dir := t.TempDir()
	image, point := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	probetest.InMountNamespace(t, func(proc string) error {
		for _, args := range [][]string{
			{"truncate", "-s", "8M", image},
			{"mkfs.ext4", "-q", image},
			{"mkdir", point},
			{"mount", "-o", "loop,errors=remount-ro", image, point},
		} {
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", args, err, out)
			}
		}
		defer unix.Unmount(point, 0)
		m, err := Find(proc, "/", point)
		if err != nil {
			return err
		}
		if option, ro := m.ReadOnly(); ro || m.MountPoint != point || m.FSType != "ext4" {
			t.Errorf("%+v is read-only by %q: want an ext4 that can be written to", m, option)
		}
		trigger := filepath.Join("/sys/fs/ext4", filepath.Base(m.Source), "trigger_fs_error")
		if err := os.WriteFile(trigger, []byte("test"), 0); err != nil {
			return err
		}
		if m, err = Find(proc, "/", point); err != nil {
			return err
		}
		option, ro := m.ReadOnly()
		if !ro {
			t.Errorf("%+v is not read-only after an error", m)
		}
		t.Logf("read-only by %q", option)
		return nil
	})
}

func FuzzFind(f *testing.F) {
	f.Add(nodeTable, "/", "/var/lib/kubelet")
	f.Add(containerTable, "/host/root", "/var/lib/kubelet")
	f.Add("1 2 0:1 / / rw - a b rw\n2 1 0:1 / / rw - a b rw\n", "/", "/")
	f.Fuzz(func(t *testing.T, table, rootfs, path string) {
		m, err := findOne(strings.NewReader(table), rootfs, "/"+path)
		if (err != nil) != (m == Info{}) {
			t.Errorf("both %+v and %v", m, err)
		}
		below := filepath.Join("/", rootfs, path)
		if err == nil && !isWithin(filepath.Clean("/"+path), m.MountPoint) && !isWithin(below, m.MountPoint) {
			t.Errorf("%q is not on %q", path, m.MountPoint)
		}
	})
}

// BenchmarkFind is beside what prometheus/procfs needs only to parse the same table,
// that of a node of 110 pods and one of 7,300 mounts.
func BenchmarkFind(b *testing.B) {
	for _, mounts := range []int{1000, 7300} {
		root := probetest.NewRoot(b)
		table := strings.Builder{}
		table.WriteString(nodeTable)
		for i := range mounts {
			fmt.Fprintf(&table, "%d 27 0:%d / /run/containerd/io.containerd.runtime.v2.task/k8s.io/%064x/rootfs rw,relatime - overlay overlay rw,lowerdir=%s\n", 100+i, i, i, strings.Repeat("/layer:", 40))
		}
		root.Write(b, "proc/1/mountinfo", table.String())
		b.Run(fmt.Sprint(mounts, "/ours"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Find(root.Path("proc"), "/", "/var/lib/kubelet"); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprint(mounts, "/procfs"), func(b *testing.B) {
			peer, err := procfs.NewFS(root.Path("proc"))
			probetest.Must(b, err)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := peer.GetProcMounts(1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

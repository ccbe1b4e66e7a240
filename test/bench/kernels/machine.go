package main

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

// results are what the guest brought home.
type results struct {
	diary diary
	files map[string][]byte
	// took is from the start of qemu to its end.
	took time.Duration
}

// bootTimeout is for everything that a guest does: many times what it takes on a
// machine with two free CPUs.
const bootTimeout = 10 * time.Minute

const (
	scratchSize = 512 << 20 // sparse, like the others
	resultSize  = 64 << 20
	// diskSpeed is that of all disks of a guest with a storm, in bytes a second: what
	// clouds give their smaller machines.
	diskSpeed = "125000000"
)

// machine is what a guest has besides the usual.
type machine struct {
	// disk is a directory whose files are on its first disk; "" is none.
	disk string
	// network has ports of this machine that lead to those of the guest, as qemu
	// writes them. Without any, the guest has no network.
	network []string
	// during is called when it boots, and the guest is waited for afterwards. The
	// context ends with the guest.
	during func(context.Context)
}

// runGuest boots a machine and waits until it has turned itself off. dir is for its
// disks and its console.
func (b *bench) runGuest(k kernel, i image, m *machine, files []file, dir string) *results {
	scratch, result, initrd, console := filepath.Join(dir, "scratch.img"), filepath.Join(dir, "result.img"), filepath.Join(dir, "initrd"), filepath.Join(dir, "console")
	storm := filepath.Join(dir, "storm.img")
	for name, size := range map[string]int64{scratch: scratchSize, result: resultSize, storm: stormDiskSize} {
		must.OK(b, os.WriteFile(name, nil, 0o644))
		must.OK(b, os.Truncate(name, size))
	}
	format := []string{"-q", "-F", scratch}
	if m.disk != "" {
		format = append(format, "-d", m.disk)
	}
	output(b.P, dir, "mkfs.ext4", format...)
	b.writeInitrd(initrd, i, files)
	begin := time.Now()
	err := b.Try(func() { b.qemu(k, i, m, initrd, console, scratch, result, storm) })
	res := &results{took: time.Since(begin), files: map[string][]byte{}}
	if err == nil {
		err = b.Try(func() { b.readResults(res, result) })
	}
	text, _ := os.ReadFile(console) // there is none if qemu did not start
	if b.verbose {
		fmt.Fprintf(b.Out, "%s", text)
	}
	if err != nil {
		b.Fatalf("%w; the end of its console:\n%s", err, process.LogTail(console, 60))
	}
	return res
}

func (b *bench) qemu(k kernel, i image, m *machine, initrd, console string, disks ...string) {
	// KVM is not there in most places where tests run, and hangs in some.
	command, args, parameters := "qemu-system-x86_64", []string{"-cpu", "max"}, "console=ttyS0"
	if k.arch == "arm64" {
		// Pointer authentication as the architecture specifies it is slow to emulate.
		command, args, parameters = "qemu-system-aarch64", []string{"-M", "virt", "-cpu", "max,pauth-impdef=on"}, "console=ttyAMA0"
	}
	args = append(args,
		"-accel", "tcg,thread=multi", "-smp", "2", "-m", "1024",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-monitor", "none", "-serial", "stdio",
		"-kernel", i.vmlinuz(), "-initrd", initrd,
		// On a panic the machine restarts at once, which ends qemu.
		// What the kernel does not know is in the environment of /init.
		"-append", parameters+" panic=-1 quiet RUN="+b.only,
	)
	limit := ""
	if len(m.network) > 0 {
		// Without its firmware, which is in another package.
		args = append(args, "-netdev", "user,id=net,hostfwd="+strings.Join(m.network, ",hostfwd="), "-device", "virtio-net-pci,netdev=net,romfile=")
		limit = ",throttling.group=disks,throttling.bps-total=" + diskSpeed
	}
	for _, disk := range disks {
		args = append(args, "-drive", "if=virtio,format=raw,cache=unsafe,file="+disk+limit)
	}
	guest := must.Get(process.Start(process.Spec{Path: command, Args: args, LogFile: console}))(b)
	defer guest.Stop(0)
	if m.during != nil {
		ctx, cancel := context.WithCancelCause(b.Context())
		go func() {
			<-guest.Exited()
			cancel(errors.New("the guest is off"))
		}()
		m.during(ctx)
	}
	select {
	case <-guest.Exited():
	case <-b.Context().Done():
		b.Fatal(context.Cause(b.Context()))
	case <-time.After(bootTimeout):
		b.Fatalf("%s is not off after %s", k, bootTimeout)
	}
}

func (b *bench) writeInitrd(name string, i image, files []file) {
	files = append([]file{
		{name: "/etc/os-release", data: []byte("PRETTY_NAME=\"a kernel under test\"\nID=nodeprobe\n")},
		{name: "/etc/machine-id", data: []byte(strings.Repeat("0123456789abcdef", 2) + "\n")},
		{name: "/etc/hosts", data: []byte("127.0.0.1 localhost\n192.0.2.1 " + hostname + "\n")},
	}, files...)
	for _, path := range must.Get(filepath.Glob(filepath.Join(i.modules(), "*.ko")))(b) {
		files = append(files, file{name: modulesPath + "/" + filepath.Base(path), from: path})
	}
	f := must.Get(os.Create(name))(b)
	must.OK(b, writeCPIO(f, files, []string{"/proc", "/sys", "/dev", "/run", "/tmp", "/root", "/var/lib", "/src/bpf"}))
	must.OK(b, f.Close())
}

// readResults reads the tar file at the beginning of a disk.
func (b *bench) readResults(res *results, disk string) {
	f := must.Get(os.Open(disk))(b)
	defer f.Close()
	r := tar.NewReader(f)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must.OK(b, err)
		res.files[header.Name] = must.Get(io.ReadAll(r))(b)
	}
	if res.files[diaryName] == nil {
		b.Fatal("guest brought no results")
	}
	must.OK(b, json.Unmarshal(res.files[diaryName], &res.diary))
}

// file is one that the guest has in its root filesystem.
type file struct {
	// name begins with a slash.
	name string
	// from is the file on this machine to take the contents from. If it is "",
	// data is used.
	from string
	data []byte
	// link makes it a symbolic link to that.
	link string
}

// Types and permissions.
const (
	cpioDirectory  = 0o040755
	cpioExecutable = 0o100755 // as good for a file that is none
	cpioLink       = 0o120777
)

// writeCPIO writes an archive as Linux unpacks it at boot (format "newc"), with
// the directories that the files are in and the given empty ones.
func writeCPIO(w io.Writer, files []file, directories []string) error {
	buf := bufio.NewWriter(w)
	var inode int
	entry := func(name string, mode int, data []byte) {
		inode++
		name = strings.TrimPrefix(name, "/")
		// Magic, inode, mode, uid, gid, links, time, size, device and special
		// device in two numbers each, length of the name, checksum.
		header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
			inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
		fmt.Fprintf(buf, "%s%s\x00%s%s%s", header, name, padding(len(header)+len(name)+1), data, padding(len(data)))
	}

	var made []string
	var mkdir func(dir string)
	mkdir = func(dir string) {
		if dir == "/" || slices.Contains(made, dir) {
			return
		}
		mkdir(path.Dir(dir))
		made = append(made, dir)
		entry(dir, cpioDirectory, nil)
	}
	for _, dir := range directories {
		mkdir(dir)
	}
	for _, f := range files {
		mkdir(path.Dir(f.name))
		if f.link != "" {
			entry(f.name, cpioLink, []byte(f.link))
			continue
		}
		data := f.data
		if f.from != "" {
			var err error
			if data, err = os.ReadFile(f.from); err != nil {
				return err
			}
		}
		entry(f.name, cpioExecutable, data)
	}
	inode = -1 // so that it becomes 0
	entry("TRAILER!!!", 0, nil)
	return buf.Flush()
}

func padding(n int) string { return "\x00\x00\x00"[:-n&3] }

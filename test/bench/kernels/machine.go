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
	scratchSize = 512 << 20 // sparse, like the other
	resultSize  = 64 << 20
)

// runGuest boots a machine and waits until it has turned itself off. dir is for its
// disks and its console.
func (b *bench) runGuest(k kernel, i image, files []file, dir string) *results {
	scratch, result, initrd, console := filepath.Join(dir, "scratch.img"), filepath.Join(dir, "result.img"), filepath.Join(dir, "initrd"), filepath.Join(dir, "console")
	for name, size := range map[string]int64{scratch: scratchSize, result: resultSize} {
		must.OK(b, os.WriteFile(name, nil, 0o644))
		must.OK(b, os.Truncate(name, size))
	}
	output(b.P, dir, "mkfs.ext4", "-q", "-F", scratch)
	b.writeInitrd(initrd, i, files)
	begin := time.Now()
	err := b.Try(func() { b.qemu(k, i, initrd, scratch, result, console) })
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

func (b *bench) qemu(k kernel, i image, initrd, scratch, result, console string) {
	// KVM is not there in most places where tests run, and hangs in some.
	command, args, parameters := "qemu-system-x86_64", []string{"-cpu", "max"}, "console=ttyS0"
	if k.arch == "arm64" {
		// Pointer authentication as the architecture specifies it is slow to emulate.
		command, args, parameters = "qemu-system-aarch64", []string{"-M", "virt", "-cpu", "max,pauth-impdef=on"}, "console=ttyAMA0"
	}
	args = append(args,
		"-accel", "tcg,thread=multi", "-smp", "2", "-m", "1024",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-monitor", "none", "-serial", "stdio",
		"-drive", "if=virtio,format=raw,cache=unsafe,file="+scratch,
		"-drive", "if=virtio,format=raw,cache=unsafe,file="+result,
		"-kernel", i.vmlinuz(), "-initrd", initrd,
		// On a panic the machine restarts at once, which ends qemu.
		"-append", parameters+" panic=-1 quiet",
	)
	machine := must.Get(process.Start(process.Spec{Path: command, Args: args, LogFile: console}))(b)
	defer machine.Stop(0)
	select {
	case <-machine.Exited():
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
	must.OK(b, writeCPIO(f, files, []string{"/proc", "/sys", "/dev", "/run", "/tmp", "/root", "/var/lib"}))
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
}

// Types and permissions.
const (
	cpioDirectory  = 0o040755
	cpioExecutable = 0o100755 // as good for a file that is none
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

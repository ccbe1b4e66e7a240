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

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

// machine is a virtual one, for one boot.
type machine struct {
	kernel  kernel
	image   image
	files   []file
	plan    plan
	console io.Writer // or nil
}

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

// run boots the machine and waits until it has turned itself off. scratch is a
// directory for its disks.
func (m *machine) run(p *program.P, scratch string) *results {
	scratchFile, resultFile := filepath.Join(scratch, "scratch.img"), filepath.Join(scratch, "result.img")
	for name, size := range map[string]int64{scratchFile: scratchSize, resultFile: resultSize} {
		must.OK(p, os.WriteFile(name, nil, 0o644))
		must.OK(p, os.Truncate(name, size))
	}
	must.Get(output(p, scratch, "mkfs.ext4", "-q", "-F", scratchFile))(p)
	initrd := filepath.Join(scratch, "initrd")
	m.writeInitrd(p, initrd)

	start := time.Now()
	console := filepath.Join(scratch, "console")
	ended := m.qemu(p, initrd, scratchFile, resultFile, console)
	took := time.Since(start)
	if m.console != nil {
		if data, err := os.ReadFile(console); err == nil {
			_, _ = m.console.Write(data)
		}
	}
	res, err := readResults(resultFile)
	if err := errors.Join(ended, err); err != nil {
		p.Fatalf("%w; the end of its console:\n%s", err, process.LogTail(console, 60))
	}
	res.took = took
	return res
}

func (m *machine) qemu(p *program.P, initrd, scratchFile, resultFile, console string) error {
	// KVM is not there in most places where tests run, and hangs in some.
	command, args := "qemu-system-x86_64", []string{"-cpu", "max"}
	parameters := "console=ttyS0"
	if m.kernel.arch == "arm64" {
		// Pointer authentication as the architecture specifies it is slow to emulate.
		command, args = "qemu-system-aarch64", []string{"-M", "virt", "-cpu", "max,pauth-impdef=on"}
		parameters = "console=ttyAMA0"
	}
	drive := func(file string) string { return "if=virtio,format=raw,cache=unsafe,file=" + file }
	args = append(args,
		"-accel", "tcg,thread=multi",
		"-smp", "2",
		"-m", "1024",
		"-nodefaults", "-no-user-config", "-no-reboot",
		"-display", "none", "-monitor", "none", "-serial", "stdio",
		"-drive", drive(scratchFile),
		"-drive", drive(resultFile),
		"-kernel", m.image.vmlinuz(),
		"-initrd", initrd,
		// On a panic the machine restarts at once, which ends qemu.
		"-append", parameters+" panic=-1 quiet",
	)
	machine := must.Get(process.Start(process.Spec{Path: command, Args: args, LogFile: console}))(p)
	defer machine.Stop(0)
	ctx, cancel := context.WithTimeoutCause(p.Context(), bootTimeout, fmt.Errorf("not off after %s", bootTimeout))
	defer cancel()
	select {
	case <-machine.Exited():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", m.kernel, context.Cause(ctx))
	}
}

func (m *machine) writeInitrd(p *program.P, name string) {
	text := must.Get(json.Marshal(m.plan))(p)
	files := append([]file{
		{name: planPath, data: text},
		{name: "/etc/os-release", data: []byte("PRETTY_NAME=\"a kernel under test\"\nID=nodeprobe\n")},
		{name: "/etc/machine-id", data: []byte(strings.Repeat("0123456789abcdef", 2) + "\n")},
		{name: "/etc/hosts", data: []byte("127.0.0.1 localhost\n192.0.2.1 " + hostname + "\n")},
	}, m.files...)
	modules := must.Get(filepath.Glob(filepath.Join(m.image.modules(), "*.ko")))(p)
	for _, path := range modules {
		files = append(files, file{name: modulesPath + "/" + filepath.Base(path), from: path})
	}
	f := must.Get(os.Create(name))(p)
	must.OK(p, writeCPIO(f, files, []string{"/proc", "/sys", "/dev", "/run", "/tmp", "/root", "/var/lib"}))
	must.OK(p, f.Close())
}

// readResults reads the tar file at the beginning of a disk.
func readResults(disk string) (*results, error) {
	f, err := os.Open(disk)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	res := &results{files: make(map[string][]byte)}
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read results: %w", err)
		}
		if res.files[header.Name], err = io.ReadAll(r); err != nil {
			return nil, fmt.Errorf("read results: %w", err)
		}
	}
	if res.files[diaryName] == nil {
		return nil, errors.New("guest brought no results")
	}
	return res, json.Unmarshal(res.files[diaryName], &res.diary)
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

package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// The modules of a guest, besides those that they need. What a kernel has built in has no
// file. Those for the disks and the network, and for the tests' loop devices, are inserted
// at boot, and filesystems as on nodes: when one is mounted, the kernel starts modprobe.
var (
	bootModules = []string{
		"virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "virtio_blk", "virtio_net", "dummy", "loop",
	}
	lateModules = []string{"ext4", "xfs", "btrfs", "crc32c_generic", "xxhash_generic", "blake2b_generic", "crc32c_intel"}
)

const (
	modulesPath  = "/modules"
	modprobePath = "/sbin/modprobe"
)

// takeModules takes the modules from an unpacked kernel package: in lib before Debian 13,
// in usr/lib since.
func (i image) takeModules(p *program.P, tree string) {
	paths := map[string]string{}
	must.OK(p, filepath.WalkDir(tree, func(path string, _ fs.DirEntry, err error) error {
		if name, _, found := strings.Cut(filepath.Base(path), ".ko"); found {
			paths[strings.ReplaceAll(name, "-", "_")] = path
		}
		return err
	}))
	must.OK(p, os.MkdirAll(i.modules(), 0o755))
	for wanted := slices.Concat(bootModules, lateModules); len(wanted) > 0; wanted = wanted[1:] {
		path := paths[wanted[0]]
		delete(paths, wanted[0])
		if path == "" {
			continue
		}
		data := must.Get(os.ReadFile(path))(p)
		if strings.HasSuffix(path, ".xz") {
			data = output(p, tree, "xz", "-dc", path)
		}
		must.OK(p, os.WriteFile(filepath.Join(i.modules(), wanted[0]+".ko"), data, 0o644))
		wanted = append(wanted, must.Get(readModule(bytes.NewReader(data)))(p).needs...)
	}
}

// module is what is written in a module.
type module struct{ needs, aliases []string }

func readModule(r io.ReaderAt) (m module, err error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return m, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return m, errors.New("no .modinfo")
	}
	data, err := section.Data()
	for line := range strings.SplitSeq(string(data), "\x00") {
		switch key, value, _ := strings.Cut(line, "="); {
		case key == "alias":
			m.aliases = append(m.aliases, value)
		case key == "depends" && value != "":
			for name := range strings.SplitSeq(value, ",") {
				m.needs = append(m.needs, strings.ReplaceAll(name, "-", "_"))
			}
		}
	}
	return m, err
}

var errBuiltIn = errors.New("no such module, or it is built in")

// insertModule inserts a module of the guest, by its name or an alias, after those that it
// needs.
func insertModule(name string) error {
	paths, err := filepath.Glob(modulesPath + "/*.ko")
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		m, err := readModule(f)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if filepath.Base(path) != name+".ko" && !slices.Contains(m.aliases, name) {
			continue
		}
		for _, needed := range m.needs {
			if err := insertModule(needed); err != nil {
				return fmt.Errorf("for %s: %w", name, err)
			}
		}
		if err := unix.FinitModule(int(f.Fd()), "", 0); !errors.Is(err, unix.EEXIST) {
			return err
		}
		return nil
	}
	return errors.Join(err, errBuiltIn)
}

// modprobe inserts a module that the kernel wants: modprobe -q -- fs-xfs.
func modprobe(p *program.P) { must.OK(p, insertModule(os.Args[len(os.Args)-1])) }

// The tools make the filesystems that the tests mount.
var (
	toolPackages = []string{"e2fsprogs", "xfsprogs", "btrfs-progs"}
	tools        = []string{"bin/mkfs.ext4", "bin/mkfs.xfs", "bin/mkfs.btrfs"}
)

// takeTools takes the tools, and the libraries that they need, from unpacked packages.
func (i image) takeTools(p *program.P, tree string) {
	paths := map[string]string{}
	must.OK(p, filepath.WalkDir(tree, func(path string, entry fs.DirEntry, err error) error {
		// Links between them are relative to the root.
		if name := filepath.Base(path); err == nil && (paths[name] == "" || entry.Type().IsRegular()) {
			paths[name] = path
		}
		return err
	}))
	taken := map[string]bool{}
	for wanted := slices.Clone(tools); len(wanted) > 0; wanted = wanted[1:] {
		to := filepath.Join(i.tools(), wanted[0])
		if taken[to] {
			continue
		}
		taken[to] = true
		data, err := os.ReadFile(paths[filepath.Base(to)])
		if err != nil {
			p.Fatalf("no %s in the packages of the tools: %w", wanted[0], err)
		}
		must.OK(p, os.MkdirAll(filepath.Dir(to), 0o755))
		must.OK(p, os.WriteFile(to, data, 0o755))
		f := must.Get(elf.NewFile(bytes.NewReader(data)))(p)
		for _, name := range must.Get(f.ImportedLibraries())(p) {
			wanted = append(wanted, "lib/"+name)
		}
		if interpreter := f.Section(".interp"); interpreter != nil {
			wanted = append(wanted, strings.TrimRight(string(must.Get(interpreter.Data())(p)), "\x00"))
		}
	}
}

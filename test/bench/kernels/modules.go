package main

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// wantedModules is for the disks and the network of the guest, and for the
// tests' loop devices. ext4 is built in.
var wantedModules = []string{"virtio_pci", "virtio_blk", "dummy", "loop"}

// takeModules copies modules, and those that they depend on, from a kernel's
// tree to a directory, with names that sort in the order in which they have to
// be inserted. Those that are built in are left out.
func takeModules(ctx context.Context, tree, to string, wanted []string) error {
	files := make(map[string]string)
	err := filepath.WalkDir(tree, func(path string, _ fs.DirEntry, err error) error {
		if name, _, found := strings.Cut(filepath.Base(path), ".ko"); found {
			files[moduleName(name)] = path
		}
		return err
	})
	if err != nil {
		return err
	}
	list, err := os.ReadFile(filepath.Join(tree, "modules.builtin"))
	if err != nil {
		return err
	}
	builtin := make(map[string]bool)
	for path := range strings.FieldsSeq(string(list)) {
		builtin[moduleName(strings.TrimSuffix(filepath.Base(path), ".ko"))] = true
	}

	var taken []string
	var take func(name string) error
	take = func(name string) error {
		if builtin[name] || slices.Contains(taken, name) {
			return nil
		}
		if files[name] == "" {
			return fmt.Errorf("no module %s in %s", name, tree)
		}
		object, err := readModule(ctx, files[name])
		if err != nil {
			return err
		}
		depends, err := moduleDepends(object)
		if err != nil {
			return fmt.Errorf("read %s: %w", files[name], err)
		}
		for _, d := range depends {
			if err := take(d); err != nil {
				return err
			}
		}
		taken = append(taken, name)
		return os.WriteFile(filepath.Join(to, fmt.Sprintf("%02d-%s.ko", len(taken), name)), object, 0o644)
	}
	for _, name := range wanted {
		if err := take(name); err != nil {
			return err
		}
	}
	return nil
}

// moduleName is how the kernel itself spells the name of a file.
func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

func readModule(ctx context.Context, path string) ([]byte, error) {
	if strings.HasSuffix(path, ".xz") {
		text, err := output(ctx, filepath.Dir(path), "xz", "-dc", path)
		return []byte(text), err
	}
	return os.ReadFile(path)
}

// moduleDepends reads the names of the modules that a module needs. The packages
// have no modules.dep: depmod makes it where they are installed.
func moduleDepends(object []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		if list, found := bytes.CutPrefix(entry, []byte("depends=")); found {
			return strings.FieldsFunc(moduleName(string(list)), func(r rune) bool { return r == ',' }), nil
		}
	}
	return nil, nil
}

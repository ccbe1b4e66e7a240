package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

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

// padding fills up to a multiple of four.
func padding(n int) string { return "\x00\x00\x00"[:-n&3] }

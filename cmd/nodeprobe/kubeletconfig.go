package main

import (
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// kubeletFiles names the configuration of a kubelet, from which defaults are
// taken: they lie below our own file and the flags, and above our own defaults.
type kubeletFiles struct{ file, dir string }

func (k *kubeletFiles) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.file, "kubelet-config", "", "KubeletConfiguration to take defaults from")
	cmd.Flags().StringVar(&k.dir, "kubelet-config-dir", "", "directory of the kubelet's drop-ins, *.conf")
}

func (k kubeletFiles) given() bool { return k != kubeletFiles{} }

// kubeletConfig is what a kubelet's files come to.
type kubeletConfig struct {
	config    config // our defaults, with what the files say over them
	theirs    config // what a kubelet would make of them
	merge     *bool  // mergeDefaultEvictionSettings
	documents []kubeletDocument
	problems  []problem
	remarks   remarks
	ignored   []string // fields
	literal   bool     // evictionHard has none of our defaults
}

// kubeletDocument is a KubeletConfiguration, or a patch of one.
type kubeletDocument struct {
	path   string
	root   *yaml.Node
	dropIn bool
}

// remark is about something in a kubelet's files that is no error.
type remark struct {
	level slog.Level // info or warn
	path  string
	line  int // 0 for all of the file
	text  string
}

func (r remark) String() string { return r.place() + ": " + r.text }

func (r remark) place() string {
	if r.line == 0 {
		return r.path
	}
	return fmt.Sprintf("%s:%d", r.path, r.line)
}

type remarks []remark

// add leaves out what would be too much: the file may hold anything.
func (r *remarks) add(level slog.Level, path string, line int, format string, args ...any) {
	text := oneLine(fmt.Sprintf(format, args...), mostRunes)
	switch {
	case len(*r) > mostProblems:
		return
	case len(*r) == mostProblems:
		text = "and so on"
	}
	*r = append(*r, remark{level, path, line, text})
}

// print shows all of them.
func (r remarks) print(w io.Writer) {
	for _, remark := range r {
		kind := "note"
		if remark.level == slog.LevelWarn {
			kind = "warning"
		}
		fmt.Fprintf(w, "%s: %s: %s\n", remark.place(), kind, remark.text)
	}
}

// warn shows the warnings among them.
func (r remarks) warn(w io.Writer) {
	for _, remark := range r {
		if remark.level == slog.LevelWarn {
			fmt.Fprintf(w, "nodeprobe: %s\n", remark)
		}
	}
}

// load reads the files. Without any it returns our defaults.
func (k kubeletFiles) load() (*kubeletConfig, error) {
	out := &kubeletConfig{config: defaults()}
	if !k.given() {
		return out, nil
	}
	if k.file != "" {
		data, err := os.ReadFile(k.file)
		if err != nil {
			return nil, fmt.Errorf("read kubelet configuration: %w", err)
		}
		out.add(k.file, data, false)
	}
	if k.dir != "" {
		if err := out.addDropIns(k.dir); err != nil {
			return nil, fmt.Errorf("read kubelet configuration: %w", err)
		}
	}
	out.decode()
	return out, nil
}

// addDropIns walks the directory in the order in which a kubelet does.
func (k *kubeletConfig) addDropIns(dir string) error {
	var skipped []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || entry.IsDir():
			return err
		case filepath.Ext(path) != ".conf":
			skipped = append(skipped, path)
			return nil
		}
		data, err := os.ReadFile(path)
		if err == nil {
			k.add(path, data, true)
		}
		return err
	})
	if len(skipped) > 0 {
		k.remarks.add(slog.LevelInfo, dir, 0, "not *.conf, and skipped as by a kubelet: %s", strings.Join(skipped, ", "))
	}
	return err
}

// add parses a file, which has to say itself what it is.
func (k *kubeletConfig) add(path string, data []byte, dropIn bool) {
	root, bad := parseDocument(data)
	if bad != nil {
		bad.path = path
		k.problems = append(k.problems, *bad)
		k.documents = append(k.documents, kubeletDocument{path: path, root: &yaml.Node{Kind: yaml.MappingNode}, dropIn: dropIn})
		return
	}
	foreign := false
	for _, header := range [][2]string{{"apiVersion", "kubelet.config.k8s.io/v1beta1"}, {"kind", "KubeletConfiguration"}} {
		value := ""
		if _, n := entry(root, header[0]); n != nil && !isNull(n) {
			value = n.Value
		}
		if err := oneOf(value, header[1]); err != nil {
			k.problems = append(k.problems, problem{path: path, line: lineOf(root, header[0], ""), field: header[0], err: err})
			foreign = true
		}
	}
	if foreign { // what its fields mean is not known
		root = &yaml.Node{Kind: yaml.MappingNode}
	}
	k.documents = append(k.documents, kubeletDocument{path: path, root: root, dropIn: dropIn})
}

// place returns where a field, or an entry of it, was set last: in our own file,
// whose path is "" and whose root may be nil, or in one of the kubelet's.
func (k *kubeletConfig) place(own *yaml.Node, field, key string) (path string, line int) {
	if holds(own, field, key) || !isKubeletField(field) {
		return "", lineOf(own, field, key)
	}
	for _, doc := range slices.Backward(k.documents) {
		if holds(doc.root, field, key) {
			return doc.path, lineOf(doc.root, field, key)
		}
	}
	return "", lineOf(own, field, key)
}

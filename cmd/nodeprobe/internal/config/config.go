// Package config reads nodeprobe's configuration: its own YAML file over a kubelet's
// files over the defaults, and the settings of the command line over all of them.
//
// What a field may be is for [nodeprobe.Config.Validate] to decide. This package parses
// the text, and maps what is wrong back to file, line and field. [Default] returns the
// reference: every field with its default and an explanation.
//
// # A kubelet's configuration
//
// With --kubelet-config FILE and --kubelet-config-dir DIR, the fields that a
// KubeletConfiguration (kubelet.config.k8s.io/v1beta1, YAML or JSON) has in common with
// nodeprobe's are defaults. From the weakest to the strongest:
//
//	nodeprobe's defaults, FILE, the files of DIR, nodeprobe's own file, flags
//
// DIR is read as by a kubelet: *.conf, sorted by path, subdirectories too. Each is a JSON
// merge patch with apiVersion and kind; null deletes a field or an entry. Zero means
// unset wherever it does to a kubelet: evictionPressureTransitionPeriod: 0s is 5m there,
// but no time at all in nodeprobe's own file. If containerRuntimeEndpoint is not set, it
// is containerd's, as for a kubelet.
//
// The kubelet's other fields are ignored, and listed. An unknown field is a warning, a
// file that cannot be parsed an error. Each difference from what a kubelet would do is a
// [Remark]:
//
//	nodeStatusReportFrequency     does not follow nodeStatusUpdateFrequency
//	evictionHard                  is merged with the defaults, unless
//	                              mergeDefaultEvictionSettings is false
//	evictionHard: {}              in FILE: no thresholds, as for a kubelet
//	evictionHard[pid.available]   keeps nodeprobe's default; a kubelet has none
//
// A kubelet's flags (--node-ip, --node-labels, --hostname-override) are in no file, and
// have to be moved by hand.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/nodeprobe/nodeprobe"
)

// Files is where a configuration comes from.
type Files struct {
	Own string // nodeprobe's own; "" is all defaults
	// KubeletFile is a KubeletConfiguration and KubeletDir a directory of its drop-ins,
	// *.conf; "" is none. They rank below Own and above the defaults.
	KubeletFile, KubeletDir string
	// Settings win over every file.
	Settings []Setting
}

// Setting sets a field that is a text, whatever the files contain.
type Setting struct {
	Flag         string // for errors, without the dashes
	Field, Value string
}

// Loaded is a configuration that is valid.
type Loaded struct {
	// Agent has no API, paths of /proc, /sys and /, version, logger, registerer or hooks
	// yet.
	Agent nodeprobe.Config

	Web              Web
	Kubeconfig       string // "" is the pod's service account
	ImpersonateNode  bool
	DropCapabilities bool
	// LockedMemoryLimit is how many bytes may be locked; 0 locks nothing.
	LockedMemoryLimit int64
	// OOMScoreAdj is of this process, -1000 to 1000.
	OOMScoreAdj int
	LogLevel    slog.Level
	LogFormat   string // text or json

	// Remarks are worth a user's attention, and no errors.
	Remarks Remarks

	file file
}

// Web is about what is served.
type Web struct {
	ListenAddress       string // "" serves nothing
	HealthListenAddress string // "" serves health endpoints at ListenAddress only
	ConfigFile          string // "" is plain HTTP
}

// Load reads the files. The error has a line for each problem, which names file, line
// and field.
func Load(files Files) (*Loaded, error) {
	kubelet, err := readKubelet(files.KubeletFile, files.KubeletDir)
	if err != nil {
		return nil, err
	}
	if files.Own == "" {
		return kubelet.settle("configuration", nil, kubelet.values, nil, files.Settings)
	}
	data, err := os.ReadFile(files.Own)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return kubelet.parse(files.Own, data, files.Settings)
}

// parse reads our own file over what the kubelet's files came to.
func (o *overlay) parse(path string, data []byte, settings []Setting) (*Loaded, error) {
	root, bad := parseDocument(data)
	if bad != nil { // there is nothing to check
		return nil, join(path, o.documents, append(o.problems, *bad))
	}
	o.renameFields(path, root)
	f := o.values
	f.APIVersion, f.Kind = "", "" // a file must have them itself
	return o.settle(path, root, f, decodeRoot(root, &f), settings)
}

// renameFields gives fields with an earlier spelling their new one.
func (o *overlay) renameFields(path string, root *yaml.Node) {
	if key, _ := entry(root, "lastWord"); key != nil {
		o.remarks.add(slog.LevelWarn, path, key.Line, "lastWord: deprecated; use its new name, exitMessage")
		key.Value = "exitMessage"
	}
}

// settle applies the settings to what was decoded, and checks it.
func (o *overlay) settle(path string, root *yaml.Node, f file, problems []problem, settings []Setting) (*Loaded, error) {
	problems = append(o.problems, problems...)
	flags := map[string]string{}
	for _, s := range settings {
		field := fieldNamed(reflect.ValueOf(&f).Elem(), s.Field)
		if field.Kind() != reflect.String {
			problems = append(problems, problem{field: s.Field, flag: s.Flag, err: errors.New("no field of this name is a text")})
			continue
		}
		field.SetString(s.Value)
		flags[s.Field] = s.Flag
	}
	loaded, notes, wrong := f.resolve(nodeprobe.DefaultConfig())
	undecoded := problems
	for _, w := range wrong {
		if w.flag = flags[w.field]; w.flag == "" {
			w.path, w.line = o.place(root, w.field, w.key)
		}
		if slices.ContainsFunc(undecoded, func(u problem) bool { return u.within(w) }) {
			continue // one mistake, one line
		}
		problems = append(problems, w)
	}
	if err := join(path, o.documents, problems); err != nil {
		return nil, err
	}
	loaded.Remarks = append(o.remarks, o.differences(&f, root)...)
	for _, n := range notes {
		at, line := o.place(root, n.Field, n.Key)
		loaded.Remarks.add(slog.LevelInfo, cmp.Or(at, path), line, "%v", n)
	}
	return loaded, nil
}

// String names the files.
func (f Files) String() string {
	return strings.Join(slices.DeleteFunc([]string{f.Own, f.KubeletFile, f.KubeletDir}, func(path string) bool { return path == "" }), ", ")
}

// State returns a text that changes whenever the files do, and when the latest of them
// was written. It follows symbolic links, which is how a ConfigMap's file changes.
func (f Files) State() (state string, written time.Time) {
	var b strings.Builder
	note := func(path string) {
		info, err := os.Stat(path)
		if err != nil {
			fmt.Fprintf(&b, "%s: %v\n", path, err)
			return
		}
		if info.ModTime().After(written) {
			written = info.ModTime()
		}
		var inode uint64
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			inode = st.Ino
		}
		fmt.Fprintln(&b, path, inode, info.Size(), info.ModTime().UnixNano())
	}
	for _, path := range []string{f.Own, f.KubeletFile} {
		if path != "" {
			note(path)
		}
	}
	if f.KubeletDir != "" {
		_ = filepath.WalkDir(f.KubeletDir, func(path string, _ fs.DirEntry, _ error) error {
			note(path)
			return nil
		})
	}
	return b.String(), written
}

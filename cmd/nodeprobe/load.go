package main

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/config"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/kube"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/web"
	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// fileTimeout bounds reading a file or a directory that may be on a disk.
const fileTimeout = 2 * time.Second

// loader reads the configuration, again and again.
type loader struct {
	files   config.Files
	loading deadline.Worker[loadResult]
	looking deadline.Worker[fileState]
}

type loadResult struct {
	loaded *config.Loaded
	err    error
}

// load reads the files.
func (l *loader) load() (*config.Loaded, error) {
	result, err := l.loading.Do(fileTimeout, "read configuration "+l.files.String(), func() (r loadResult) {
		r.loaded, r.err = config.Load(l.files)
		return r
	})
	return result.loaded, cmp.Or(err, result.err)
}

// fileState identifies a state of the files.
type fileState struct {
	text    string // "" if it is not known
	written time.Time
}

// look returns the state of the files.
func (l *loader) look() (fileState, error) {
	return l.looking.Do(fileTimeout, "stat "+l.files.String(), func() (s fileState) {
		s.text, s.written = l.files.State()
		return s
	})
}

// addConfigFlags adds the flags that name the files.
func addConfigFlags(cmd *cobra.Command, files *config.Files) {
	cmd.Flags().StringVar(&files.Own, "config", "", "configuration file; see nodeprobe config default")
	addKubeletFlags(cmd, files)
}

func addKubeletFlags(cmd *cobra.Command, files *config.Files) {
	cmd.Flags().StringVar(&files.KubeletFile, "kubelet-config", "", "KubeletConfiguration to take defaults from")
	cmd.Flags().StringVar(&files.KubeletDir, "kubelet-config-dir", "", "directory of the kubelet's drop-ins, *.conf")
}

// settings are the flags that win over the configuration file. The spellings are
// node_exporter's, the kubelet's and node-problem-detector's.
var settings = []struct{ flag, field, usage string }{
	{"mode", "mode", "override mode: observe, augment or own"},
	{"hostname-override", "nodeName", "override nodeName"},
	{"kubeconfig", "kubeconfig", "override kubeconfig"},
	{"web.listen-address", "webListenAddress", `override webListenAddress; "" turns it off`},
	{"web.health-listen-address", "webHealthListenAddress", "override webHealthListenAddress: /livez and /readyz alone, plain HTTP"},
	{"web.config.file", "webConfigFile", "override webConfigFile: TLS and users"},
	{"log.level", "logLevel", "override logLevel"},
	{"log.format", "logFormat", "override logFormat"},
}

// addSettings adds those flags, all or the named ones, and returns a function that
// returns the ones that are on the command line: "" is a value, too.
func addSettings(cmd *cobra.Command, names ...string) func() []config.Setting {
	added := map[string]string{} // fields, by flag
	for _, s := range settings {
		if len(names) == 0 || slices.Contains(names, s.flag) {
			added[s.flag] = s.field
			cmd.Flags().String(s.flag, "", s.usage)
		}
	}
	return func() (given []config.Setting) {
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if field, ok := added[f.Name]; ok {
				given = append(given, config.Setting{Flag: f.Name, Field: field, Value: f.Value.String()})
			}
		})
		return given
	}
}

// agentConfig completes the agent's configuration with what is not in the files, but
// for log, metrics and hooks.
func agentConfig(loaded *config.Loaded, p paths) (nodeprobe.Config, error) {
	cfg := loaded.Agent
	cfg.Procfs, cfg.Sysfs, cfg.Rootfs = p.procfs, p.sysfs, p.rootfs
	cfg.Version = version()
	if cfg.Mode == nodeprobe.Observe && !cfg.Shadow {
		return cfg, nil
	}
	var err error
	cfg.API, cfg.APIOrigin, err = kube.Config(loaded.Kubeconfig, cfg.NodeName, loaded.ImpersonateNode, cfg.Version)
	return cfg, err
}

// webConfig is the server's part of the configuration.
func webConfig(loaded *config.Loaded, pprof bool) web.Config {
	return web.Config{
		Listen: loaded.Web.ListenAddress, HealthListen: loaded.Web.HealthListenAddress,
		File: loaded.Web.ConfigFile, Pprof: pprof,
	}
}

// webError gives a wrong web configuration file the exit code of a wrong configuration.
func webError(err error) error {
	if _, ok := errors.AsType[*web.FileError](err); ok {
		return &exitError{exitUsage, err}
	}
	return err
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/deadline"
	"github.com/nodeprobe/nodeprobe/status"
)

// changeable are the fields of a configuration that can change while the daemon
// runs; for the others it has to be restarted.
var changeable = []string{
	"sampleInterval", "logLevel",
	"evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim",
	"evictionPressureTransitionPeriod", "enforceNodeAllocatable", "conditions",
	"nodeStatusUpdateFrequency", "nodeStatusReportFrequency",
	"maxPods", "podsPerCore", "systemReserved", "kubeReserved", "reservedSystemCPUs", "localStorageCapacityIsolation",
}

// configFiles is where a configuration comes from.
type configFiles struct {
	own      string
	kubelet  kubeletFiles
	settings []setting
}

// loadedConfig is what the files come to, or why they are no configuration.
type loadedConfig struct {
	config config
	policy *policy
	err    error
}

// load reads the files; worker does, as they may be on a disk that hangs.
func (f configFiles) load(worker *deadline.Worker[loadedConfig]) (config, *policy, error) {
	loaded, err := worker.Do(fileTimeout, "read configuration "+f.String(), func() (l loadedConfig) {
		l.config, l.policy, l.err = loadConfig(f.own, f.kubelet, f.settings...)
		return l
	})
	return loaded.config, loaded.policy, cmp.Or(err, loaded.err)
}

// String names the files.
func (f configFiles) String() string {
	return strings.Join(slices.DeleteFunc([]string{f.own, f.kubelet.file, f.kubelet.dir}, func(path string) bool { return path == "" }), ", ")
}

// look tells one state of the files from another, and when the latest of them was
// written. A ConfigMap's file is a link that is made to lead to another file.
func (f configFiles) look() (state string, written time.Time) {
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
	for _, path := range []string{f.own, f.kubelet.file} {
		if path != "" {
			note(path)
		}
	}
	if f.kubelet.dir != "" {
		_ = filepath.WalkDir(f.kubelet.dir, func(path string, _ fs.DirEntry, _ error) error {
			note(path)
			return nil
		})
	}
	return b.String(), written
}

// fileState tells one state of the files from another.
type fileState struct {
	text    string // "" if it is not known
	written time.Time
}

// fileState looks at the files.
func (r *reloader) fileState() fileState {
	state, err := r.looking.Do(fileTimeout, "stat "+r.files.String(), func() (s fileState) {
		s.text, s.written = r.files.look()
		return s
	})
	said := ""
	if err != nil {
		said = err.Error()
	}
	if said != r.said && err != nil {
		r.log.Warn("cannot tell whether the configuration has changed", "err", err)
	}
	r.said = said
	return state
}

// reloader takes over a configuration that has changed, when SIGHUP asks for it or
// within a minute, and leaves the kernel's programs attached. One with a mistake
// changes nothing. A nil one does nothing.
type reloader struct {
	daemon *daemon
	files  configFiles
	level  *slog.LevelVar
	log    *slog.Logger

	hangup chan os.Signal
	looks  chan struct{}
	bad    atomic.Bool

	// Owned by Run.
	current config
	state   string // of the files that were read last
	said    string // why they could not be looked at, as it was logged last
	loading deadline.Worker[loadedConfig]
	looking deadline.Worker[fileState]

	successful, successTime, restart prometheus.Gauge
}

func newReloader(d *daemon, files configFiles, cfg *config, level *slog.LevelVar, reg prometheus.Registerer) *reloader {
	gauge := func(name, help string) prometheus.Gauge {
		return promauto.With(reg).NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	r := &reloader{
		daemon: d, files: files, level: level, log: d.log, current: *cfg,
		hangup: make(chan os.Signal, 1), looks: make(chan struct{}, 1),
		successful:  gauge("nodeprobe_config_last_reload_successful", "Whether the configuration that was read last is in force."),
		successTime: gauge("nodeprobe_config_last_reload_success_timestamp_seconds", "When the configuration in force was read."),
		restart:     gauge("nodeprobe_config_restart_needed", "Whether the configuration has fields that are not in force before a restart."),
	}
	r.state = r.fileState().text
	r.successful.Set(1)
	r.successTime.SetToCurrentTime()
	return r
}

// onHangup has SIGHUP cause a reload, until undo is called.
func (r *reloader) onHangup() (undo func()) {
	signal.Notify(r.hangup, syscall.SIGHUP)
	return func() { signal.Stop(r.hangup) }
}

// look has the files looked at. It never blocks.
func (r *reloader) look() {
	if r == nil {
		return
	}
	select {
	case r.looks <- struct{}{}:
	default:
	}
}

// refused says whether the configuration that was read last is not in force.
func (r *reloader) refused() bool { return r != nil && r.bad.Load() }

// settled is how long a file must have been left alone before it is read unasked:
// half of a configuration may be valid.
const settled = 2 * time.Second

// Run reloads when it is asked to, until ctx ends, and returns its cause.
func (r *reloader) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.hangup:
			r.reload()
		case <-r.looks:
			if now := r.fileState(); now.text != "" && now.text != r.state && time.Since(now.written) >= settled {
				r.reload()
			}
		}
	}
}

// reload reads the configuration, and tells everyone how that went.
func (r *reloader) reload() {
	r.daemon.supervisor.reloading()
	defer r.daemon.supervisor.reloaded()
	r.state = r.fileState().text // first: what is written from here on is news
	err := r.take()
	r.bad.Store(err != nil)
	if err == nil {
		r.successful.Set(1)
		r.successTime.SetToCurrentTime()
		return
	}
	if errors.Is(err, deadline.ErrNoAnswer) {
		r.state = "" // nobody has read them
	}
	r.successful.Set(0)
	for line := range strings.SplitSeq(err.Error(), "\n") {
		r.log.Error("the new configuration is refused, the old one stays", "err", line)
	}
}

// take puts what has changed in force.
func (r *reloader) take() error {
	wanted, _, err := r.files.load(&r.loading)
	if err != nil {
		return err
	}
	next, changed, stuck := merge(r.current, wanted)
	p, problems := next.policy()
	if len(problems) > 0 { // a field that is not taken over was part of the bargain
		return fmt.Errorf("%s: %w", problems[0].name(), problems[0].err)
	}
	if err := r.daemon.change(&next, p, len(changed) > 0); err != nil {
		return err
	}
	r.current = next
	r.level.Set(p.logLevel)
	r.restart.Set(0)
	if len(stuck) > 0 {
		r.restart.Set(1)
		r.log.Warn("fields of the new configuration need a restart, and stay as they are", "fields", strings.Join(stuck, " "))
	}
	if len(changed) == 0 {
		r.log.Info("nothing else has changed in the configuration")
		return nil
	}
	r.log.Info("the configuration is reloaded", "changed", strings.Join(changed, " "))
	logNotes(r.log, p)
	return nil
}

// merge returns current with what can change of wanted, and the names of the
// fields that differ: those that it took and those that it could not.
func merge(current, wanted config) (next config, changed, stuck []string) {
	next = current
	from, to := reflect.ValueOf(wanted), reflect.ValueOf(&next).Elem()
	for i := range from.NumField() {
		name := from.Type().Field(i).Tag.Get("yaml")
		switch {
		case alike(from.Field(i), to.Field(i)):
		case slices.Contains(changeable, name):
			to.Field(i).Set(from.Field(i))
			changed = append(changed, name)
		default:
			stuck = append(stuck, name)
		}
	}
	return next, changed, stuck
}

// alike says whether two fields mean the same; an empty one is like none.
func alike(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Map, reflect.Slice:
		if a.Len() == 0 && b.Len() == 0 {
			return true
		}
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

var errNothingSampled = errors.New("nothing is sampled yet")

// change puts a configuration in force that differs in fields that can change. It
// does all of it or nothing.
func (d *daemon) change(cfg *config, p *policy, differs bool) error {
	if !differs {
		return nil
	}
	snapshot, ok := d.sampler.Last()
	if !ok {
		return errNothingSampled
	}
	if d.writer != nil {
		if err := d.writer.change(cfg, p, &snapshot); err != nil {
			return err
		}
	}
	d.warnThresholds(p.thresholds, &snapshot)
	d.monitor.change(cfg, p)
	d.sampler.SetInterval(cfg.SampleInterval)
	d.wake(probe.CauseReload)
	return nil
}

func (o *owner) change(cfg *config, p *policy, s *probe.Snapshot) error {
	if err := o.checkResources(p.reserved, &p.resources, s); err != nil {
		return err
	}
	o.content.SetResources(p.resources)
	o.updater.Change(status.Plan{
		UpdateFrequency: cfg.NodeStatusUpdateFrequency, ReportFrequency: cfg.NodeStatusReportFrequency,
	})
	return nil
}

// change finds nothing of its own: the rules are the monitor's.
func (a *augmenter) change(*config, *policy, *probe.Snapshot) error { return nil }

// Package preflight reports what works on this machine, and how to fix what does not.
package preflight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/process"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/cgroup"
	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/probe/notify"
)

// Outcomes of a Finding.
const (
	OK      = "ok"
	Off     = "off"     // not wanted
	Missing = "missing" // costs the signals that it names
	Fails   = "fails"   // keeps conditions from being decided
)

// Finding is what was found out about one thing.
type Finding struct {
	What    string `json:"what"`
	Outcome string `json:"outcome"`
	Detail  string `json:"detail"`
	Remedy  string `json:"remedy,omitempty"`
}

// Check looks at the machine by doing what an agent with cfg does: it attaches each
// program and reads each file once.
func Check(ctx context.Context, cfg *nodeprobe.Config, want Process) ([]Finding, error) {
	findings, err := check(ctx, cfg, want)
	if err != nil {
		return nil, err
	}
	wrong := WrongPaths(cfg)
	blame(wrong, findings, cfg)
	return append(wrong, findings...), nil
}

func check(ctx context.Context, cfg *nodeprobe.Config, want Process) ([]Finding, error) {
	sensor := bpf.Open(bpf.Options{Disabled: cfg.DisableBPF})
	defer sensor.Close()
	sampler, err := probe.New(probe.Config{
		Procfs: cfg.Procfs, Sysfs: cfg.Sysfs, Rootfs: cfg.Rootfs,
		RootDirectory: cfg.RootDirectory, ImageDirectories: cfg.ImageDirectories,
		Interval: cfg.SampleInterval, StatfsTimeout: cfg.StatfsTimeout, Kernel: sensor,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	defer sampler.Close()
	s := sampler.Sample()

	findings := []Finding{
		{What: "kernel", Outcome: OK, Detail: s.Machine.KernelVersion + " on " + s.Machine.Architecture},
		findCgroup(cfg.Sysfs),
	}
	for i, err := range s.Errors {
		// What the kernel does not have is no error, and missing all the same.
		if r := i - int(probe.SourcePressureCPU); r >= 0 && r < probe.NumResources {
			err = s.Pressure[r].Err
		}
		if unknown := s.Signals[probe.PIDAvailable].Err; i == int(probe.SourceTaskLimit) && errors.Is(unknown, errors.ErrUnsupported) {
			err = unknown
		}
		findings = append(findings, findSource(probe.Source(i), err))
	}
	notifier, err := notify.New(notify.Config{Procfs: cfg.Procfs, Sysfs: cfg.Sysfs})
	if err != nil {
		return nil, err
	}
	for _, source := range notifier.Sources() {
		findings = append(findings, findNotification(source))
	}
	if cfg.RuntimeEndpoint != "" {
		runtime, err := nodeprobe.SampleRuntime(ctx, *cfg)
		if err != nil {
			return nil, err
		}
		findings = append(findings, findRuntime(runtime))
	}
	findings = append(findings, findProcess(want)...)
	findings = append(findings, findPrivileges(want, sensor.Refresh))
	if cfg.DisableBPF {
		return append(findings, Finding{"BPF programs", Off, bpf.ErrDisabled.Error(), "set bpf to auto"}), nil
	}
	findings = append(findings, findBTF(cfg.Sysfs))
	findings = append(findings, findCapabilities(cfg.Procfs)...)
	for _, h := range sensor.Hooks() {
		findings = append(findings, findHook(h))
	}
	return findings, nil
}

func findNotification(s notify.Source) Finding {
	f := Finding{What: "wake-up " + s.Name, Outcome: OK, Detail: s.Detail}
	switch {
	case s.Active:
	case s.Cause == notify.Cgroup: // a node need not have pods
		f.Outcome, f.Detail, f.Remedy = Off, s.Err.Error(), "comes with a kubelet's pods, on cgroup v2"
	default:
		f.Outcome, f.Detail, f.Remedy = Missing, s.Err.Error(), s.Remedy
	}
	return f
}

// findRuntime reports whether the container runtime answers.
func findRuntime(s *cri.Snapshot) Finding {
	f := Finding{What: "container runtime", Outcome: OK, Detail: s.Version.RuntimeName + " " + s.Version.RuntimeVersion + " at " + s.Endpoint}
	for _, read := range s.Reads {
		if read.Err != nil {
			f.Outcome, f.Detail = Fails, read.Err.Error()
			f.Remedy = "check containerRuntimeEndpoint, and that the runtime runs and lets nodeprobe connect"
			break
		}
	}
	return f
}

// findPrivileges reports which capabilities an agent keeps.
func findPrivileges(want Process, rearm func() error) Finding {
	f := Finding{What: "privileges once started", Outcome: OK}
	p, err := process.FindPrivileges(rearm, want.LockedMemoryLimit > 0)
	switch {
	case err != nil:
		f.Outcome, f.Detail = Missing, err.Error()
	case !want.DropCapabilities:
		f.Outcome, f.Detail, f.Remedy = Off, "all capabilities are kept", "set dropCapabilities to true"
	default:
		f.Detail = "capabilities that are kept: " + p.String()
	}
	return f
}

func findHook(h bpf.Hook) Finding {
	f := Finding{What: "hook " + h.Name, Outcome: OK, Detail: "signal " + h.Signal.String()}
	if !h.Attached {
		f.Outcome, f.Remedy = Missing, h.Remedy
		f.Detail += ": " + h.Err.Error()
	}
	return f
}

func findBTF(sysfs string) Finding {
	path := filepath.Join(sysfs, "kernel/btf/vmlinux")
	info, err := os.Stat(path)
	if err != nil {
		return Finding{
			"kernel types (BTF)", Missing, err.Error(),
			"use a kernel built with CONFIG_DEBUG_INFO_BTF; without it there are no BPF programs",
		}
	}
	return Finding{What: "kernel types (BTF)", Outcome: OK, Detail: fmt.Sprintf("%s, %d KiB", path, info.Size()/1024)}
}

// capability is one that some signal needs. The numbers are the kernel's.
type capability struct {
	name   string
	bit    uint
	remedy string
}

var (
	capSysAdmin  = capability{"CAP_SYS_ADMIN", 21, ""}
	capabilities = []capability{
		{"CAP_BPF", 39, "add CAP_BPF, or run as root or privileged: BPF programs cannot be loaded without it"},
		{"CAP_PERFMON", 38, "add CAP_PERFMON, or run as root or privileged: BPF programs cannot be attached without it"},
	}
)

// findCapabilities reads the effective set of this process. CAP_SYS_ADMIN
// stands for the two finer ones, which came with Linux 5.8.
func findCapabilities(procfs string) []Finding {
	effective, err := effectiveCapabilities(filepath.Join(procfs, "self/status"))
	if err != nil {
		return []Finding{{"capabilities", Missing, err.Error(), "mount procfs at --path.procfs"}}
	}
	has := func(c capability) bool { return effective&(1<<c.bit) != 0 }
	var findings []Finding
	for _, c := range capabilities {
		f := Finding{What: c.name, Outcome: OK, Detail: "effective"}
		if !has(c) {
			f.Detail = "by way of CAP_SYS_ADMIN"
			if !has(capSysAdmin) {
				f.Outcome, f.Detail, f.Remedy = Missing, "not effective", c.remedy
			}
		}
		findings = append(findings, f)
	}
	return findings
}

func effectiveCapabilities(path string) (uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if text, found := strings.CutPrefix(line, "CapEff:"); found {
			set, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			if err != nil {
				return 0, fmt.Errorf("read %s: line %q: %w", path, line, err)
			}
			return set, nil
		}
	}
	return 0, fmt.Errorf("read %s: no line CapEff", path)
}

func findCgroup(sysfs string) Finding {
	cgroupfs := filepath.Join(sysfs, "fs/cgroup")
	dir, version := cgroup.Memory(cgroupfs)
	switch {
	case version == cgroup.None && cgroup.Mounted(cgroupfs):
		return Finding{
			"memory cgroup", Missing, "no memory controller below " + dir,
			"boot with cgroup_enable=memory (cgroup v2: Linux 5.8); the limit on all pods is missing without it",
		}
	case version == cgroup.None:
		return Finding{
			"memory cgroup", Fails, "no memory controller below " + dir,
			"mount the host's /sys/fs/cgroup; memory.available cannot be read without it",
		}
	}
	if err := cgroup.CheckRoot(dir, version); err != nil {
		return Finding{
			"memory cgroup", Missing, err.Error(),
			"mount the node's /sys, in a pod as a hostPath volume, and name it in --path.sysfs; " +
				"the limit on all pods, and whose the victims of the OOM killer were, are missing without it",
		}
	}
	return Finding{What: "memory cgroup", Outcome: OK, Detail: fmt.Sprintf("%s at %s", version, dir)}
}

// findSource reports what a source that cannot be read costs.
func findSource(source probe.Source, err error) Finding {
	f := Finding{What: source.String(), Outcome: OK, Detail: "readable"}
	if err == nil {
		return f
	}
	f.Outcome, f.Detail = Fails, strings.ReplaceAll(err.Error(), "\n", "; ")
	switch source {
	case probe.SourcePressureCPU, probe.SourcePressureMemory, probe.SourcePressureIO:
		f.Outcome, f.Remedy = Missing, "boot with psi=1 on a kernel built with CONFIG_PSI (Linux 4.20); stall figures are missing without it"
	case probe.SourceTaskLimit:
		f.Remedy = "mount the host's /proc at --path.procfs"
		if errors.Is(err, probe.ErrPIDNamespace) {
			f.Remedy = "set hostPID: true in the pod, or else run in the node's PID namespace; pid.available is missing without it"
		}
		if errors.Is(err, errors.ErrUnsupported) {
			f.Outcome, f.Remedy = Missing, "pid.available cannot be known in a node that is a container; \"0%\" in evictionHard turns it off"
		}
	case probe.SourceVmstat:
		f.Outcome, f.Remedy = Missing, "the OOM kill count needs Linux 4.13"
	case probe.SourceNodeFs, probe.SourceImageFs:
		f.Remedy = "mount the host's root at --path.rootfs and check rootDirectory and imageDirectories"
	case probe.SourceMounts:
		f.Outcome, f.Remedy = Missing, "mount the host's /proc at --path.procfs; a read-only filesystem goes unnoticed without it"
	case probe.SourceMachine, probe.SourceHugePages:
		f.Outcome, f.Remedy = Missing, "mount the host's /sys and / at --path.sysfs and --path.rootfs"
	default:
		f.Remedy = "mount the host's /proc and /sys at --path.procfs and --path.sysfs"
	}
	return f
}

// Print writes the findings as a table, or as JSON if that is the format.
func Print(w io.Writer, findings []Finding, format string) error {
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(findings)
	}
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, f := range findings {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", f.Outcome, f.What, f.Detail)
		if f.Remedy != "" {
			fmt.Fprintf(tw, "\t\t-> %s\n", f.Remedy)
		}
	}
	return tw.Flush()
}

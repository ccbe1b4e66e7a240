package main

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

	"github.com/spf13/cobra"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/cgroup"
	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/probe/notify"
)

func newPreflightCommand(p *paths) *cobra.Command {
	var file, output string
	var kubelet kubeletFiles
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Say what works on this machine, and how to mend what does not",
		Long: `Say what works on this machine, and how to mend what does not.

The exit code is 0 if everything works, and 3 if something is missing. Only a
line that says "fails" keeps nodeprobe from doing its work; one that says
"missing" costs the signal that it names, and one that says "off" is not wanted.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, policy, err := loadConfig(file, kubelet)
			if err != nil {
				return &exitError{exitUsage, err}
			}
			if err := oneOf(output, "table", "json"); err != nil {
				return &exitError{exitUsage, fmt.Errorf("--output: %w", err)}
			}
			policy.remarks.warn(cmd.ErrOrStderr())
			findings, err := preflight(cmd.Context(), &cfg, *p)
			if err != nil {
				return &exitError{exitUsage, err}
			}
			wrong := wrongPaths(*p)
			blame(wrong, findings, *p)
			findings = append(wrong, findings...)
			if err := printFindings(cmd.OutOrStdout(), findings, output); err != nil {
				return err
			}
			for _, f := range findings {
				if f.Outcome != outcomeOK && f.Outcome != outcomeOff {
					return &exitError{exitIncomplete, errors.New("not everything works")}
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration file; see nodeprobe config default")
	kubelet.addFlags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}

// Outcomes of a finding.
const (
	outcomeOK      = "ok"
	outcomeOff     = "off"     // not wanted
	outcomeMissing = "missing" // costs the signals that it names
	outcomeFails   = "fails"   // keeps conditions from being decided
)

// finding is one line of preflight.
type finding struct {
	What    string `json:"what"`
	Outcome string `json:"outcome"`
	Detail  string `json:"detail"`
	Remedy  string `json:"remedy,omitempty"`
}

// preflight looks at the machine by doing what run does: it attaches each
// program and reads each file once.
func preflight(ctx context.Context, cfg *config, paths paths) ([]finding, error) {
	sensor := bpf.Open(bpf.Options{Disabled: cfg.BPF == "off"})
	defer sensor.Close()
	sampler, err := probe.New(samplerConfig(cfg, paths, sensor, slog.New(slog.DiscardHandler), nil))
	if err != nil {
		return nil, err
	}
	defer sampler.Close()
	s := sampler.Sample()

	findings := []finding{
		{What: "kernel", Outcome: outcomeOK, Detail: s.Machine.KernelVersion + " on " + s.Machine.Architecture},
		findCgroup(paths.sysfs),
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
	notifier, err := notify.New(notify.Config{Procfs: paths.procfs, Sysfs: paths.sysfs})
	if err != nil {
		return nil, err
	}
	for _, source := range notifier.Sources() {
		findings = append(findings, findNotification(source))
	}
	if cfg.ContainerRuntimeEndpoint != "" {
		runtime, err := sampleRuntime(ctx, cfg, paths)
		if err != nil {
			return nil, err
		}
		findings = append(findings, findRuntime(runtime))
	}
	findings = append(findings, findPrivileges(cfg.DropCapabilities, sensor.Refresh))
	if cfg.BPF == "off" {
		return append(findings, finding{"BPF programs", outcomeOff, bpf.ErrDisabled.Error(), "set bpf to auto"}), nil
	}
	findings = append(findings, findBTF(paths.sysfs))
	findings = append(findings, findCapabilities(paths.procfs)...)
	for _, h := range sensor.Hooks() {
		findings = append(findings, findHook(h))
	}
	return findings, nil
}

func findNotification(s notify.Source) finding {
	f := finding{What: "wake-up " + s.Name, Outcome: outcomeOK, Detail: s.Detail}
	switch {
	case s.Active:
	case s.Cause == notify.Cgroup: // a node need not have pods
		f.Outcome, f.Detail, f.Remedy = outcomeOff, s.Err.Error(), "comes with a kubelet's pods, on cgroup v2"
	default:
		f.Outcome, f.Detail, f.Remedy = outcomeMissing, s.Err.Error(), s.Remedy
	}
	return f
}

// findRuntime says whether the container runtime answers.
func findRuntime(s *cri.Snapshot) finding {
	f := finding{What: "container runtime", Outcome: outcomeOK, Detail: s.Version.RuntimeName + " " + s.Version.RuntimeVersion + " at " + s.Endpoint}
	if views := runtimeErrors(s); len(views) > 0 {
		f.Outcome, f.Detail, f.Remedy = outcomeFails, views[0].Error, views[0].Remedy
	}
	return f
}

func findHook(h bpf.Hook) finding {
	f := finding{What: "hook " + h.Name, Outcome: outcomeOK, Detail: "signal " + h.Signal.String()}
	if !h.Attached {
		f.Outcome, f.Remedy = outcomeMissing, h.Remedy
		f.Detail += ": " + h.Err.Error()
	}
	return f
}

func findBTF(sysfs string) finding {
	path := filepath.Join(sysfs, "kernel/btf/vmlinux")
	info, err := os.Stat(path)
	if err != nil {
		return finding{
			"kernel types (BTF)", outcomeMissing, err.Error(),
			"use a kernel built with CONFIG_DEBUG_INFO_BTF; without it there are no BPF programs",
		}
	}
	return finding{What: "kernel types (BTF)", Outcome: outcomeOK, Detail: fmt.Sprintf("%s, %d KiB", path, info.Size()/1024)}
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
func findCapabilities(procfs string) []finding {
	effective, err := effectiveCapabilities(filepath.Join(procfs, "self/status"))
	if err != nil {
		return []finding{{"capabilities", outcomeMissing, err.Error(), "mount procfs at --path.procfs"}}
	}
	has := func(c capability) bool { return effective&(1<<c.bit) != 0 }
	var findings []finding
	for _, c := range capabilities {
		f := finding{What: c.name, Outcome: outcomeOK, Detail: "effective"}
		if !has(c) {
			f.Detail = "by way of CAP_SYS_ADMIN"
			if !has(capSysAdmin) {
				f.Outcome, f.Detail, f.Remedy = outcomeMissing, "not effective", c.remedy
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

func findCgroup(sysfs string) finding {
	cgroupfs := filepath.Join(sysfs, "fs/cgroup")
	dir, version := cgroup.Memory(cgroupfs)
	switch {
	case version == cgroup.None && cgroup.Mounted(cgroupfs):
		return finding{
			"memory cgroup", outcomeMissing, "no memory controller below " + dir,
			"boot with cgroup_enable=memory (cgroup v2: Linux 5.8); the limit on all pods is missing without it",
		}
	case version == cgroup.None:
		return finding{
			"memory cgroup", outcomeFails, "no memory controller below " + dir,
			"mount the host's /sys/fs/cgroup; memory.available cannot be read without it",
		}
	}
	if err := cgroup.CheckRoot(dir, version); err != nil {
		return finding{
			"memory cgroup", outcomeMissing, err.Error(),
			"mount the node's /sys, in a pod as a hostPath volume, and name it in --path.sysfs; " +
				"the limit on all pods, and whose the victims of the OOM killer were, are missing without it",
		}
	}
	return finding{What: "memory cgroup", Outcome: outcomeOK, Detail: fmt.Sprintf("%s at %s", version, dir)}
}

// findSource says what a source that cannot be read costs.
func findSource(source probe.Source, err error) finding {
	f := finding{What: source.String(), Outcome: outcomeOK, Detail: "readable"}
	if err == nil {
		return f
	}
	f.Outcome, f.Detail = outcomeFails, strings.ReplaceAll(err.Error(), "\n", "; ")
	switch source {
	case probe.SourcePressureCPU, probe.SourcePressureMemory, probe.SourcePressureIO:
		f.Outcome, f.Remedy = outcomeMissing, "boot with psi=1 on a kernel built with CONFIG_PSI (Linux 4.20); stall figures are missing without it"
	case probe.SourceTaskLimit:
		f.Remedy = "mount the host's /proc at --path.procfs"
		if errors.Is(err, probe.ErrPIDNamespace) {
			f.Remedy = "set hostPID: true in the pod, or else run in the node's PID namespace; pid.available is missing without it"
		}
		if errors.Is(err, errors.ErrUnsupported) {
			f.Outcome, f.Remedy = outcomeMissing, "pid.available cannot be known in a node that is a container; \"0%\" in evictionHard turns it off"
		}
	case probe.SourceVmstat:
		f.Outcome, f.Remedy = outcomeMissing, "the OOM kill count needs Linux 4.13"
	case probe.SourceNodeFs, probe.SourceImageFs:
		f.Remedy = "mount the host's root at --path.rootfs and check rootDirectory and imageDirectories"
	case probe.SourceMounts:
		f.Outcome, f.Remedy = outcomeMissing, "mount the host's /proc at --path.procfs; a read-only filesystem goes unnoticed without it"
	case probe.SourceMachine, probe.SourceHugePages:
		f.Outcome, f.Remedy = outcomeMissing, "mount the host's /sys and / at --path.sysfs and --path.rootfs"
	default:
		f.Remedy = "mount the host's /proc and /sys at --path.procfs and --path.sysfs"
	}
	return f
}

func printFindings(w io.Writer, findings []finding, format string) error {
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

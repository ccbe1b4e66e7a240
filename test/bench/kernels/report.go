package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// report is what came of one kernel.
type report struct {
	kernel   kernel
	version  string
	boot     time.Duration
	took     time.Duration // qemu's
	tests    []test
	passed   int
	table    string // preflight's
	facts    []string
	failures []string
}

// test is a test that did not just pass.
type test struct {
	name, result, output string
}

func (r *report) fail(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

// want is for figures that a later reader is to see, right or wrong.
func (r *report) want(ok bool, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.facts = append(r.facts, text)
	if !ok {
		r.fail("implausible: %s", text)
	}
}

// A guest has no compiler and cannot make filesystems, so that what needs them is
// tested on the machine itself.
var allowedSkip = regexp.MustCompile(`"(clang|llvm-strip|go|mkfs\.ext4)": executable file not found`)

// judge reads the results and writes down what is wrong with them. An error
// means that they cannot be read.
func (r *report) judge(ctx context.Context, res *results) error {
	r.boot, r.took = res.diary.Boot, res.took
	for _, text := range res.diary.Setup {
		r.fail("prepare guest: %s", text)
	}
	for _, o := range res.diary.Steps {
		r.facts = append(r.facts, fmt.Sprintf("%s took %s", o.Name, o.Took))
		if o.Exit != 0 {
			stderr := res.files[outputName(o.Name, "stderr")]
			r.fail("%s: %s %s", o.Name, o.Error, bytes.TrimSpace(stderr))
		}
	}
	release := strings.TrimSpace(string(res.files["/proc/sys/kernel/osrelease"]))
	r.want(strings.HasPrefix(release, r.kernel.release+"."), "release %s", release)
	if err := r.judgeTests(ctx, res.files[outputName("bpf tests", "stdout")]); err != nil {
		return err
	}
	for line := range strings.Lines(string(res.files[outputName("trial", "stdout")])) {
		r.facts = append(r.facts, "trial: "+strings.TrimSpace(line))
	}
	r.table = string(res.files[outputName("preflight", "stdout")])
	if err := r.judgePreflight(res.files[outputName("preflight json", "stdout")]); err != nil {
		return err
	}
	return r.judgeSnapshot(res, release)
}

// judgeTests takes the output of a test binary.
func (r *report) judgeTests(ctx context.Context, text []byte) error {
	cmd := exec.CommandContext(ctx, "go", "tool", "test2json")
	cmd.Stdin = bytes.NewReader(text)
	events, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("run go tool test2json: %w", err)
	}
	var unfinished []string
	written := make(map[string]*strings.Builder)
	for d := json.NewDecoder(bytes.NewReader(events)); ; {
		var e struct{ Action, Test, Output string }
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("read events of tests: %w", err)
		}
		if written[e.Test] == nil {
			written[e.Test] = new(strings.Builder)
		}
		if e.Test == "" && e.Action != "output" {
			continue // The binary as a whole has an exit code.
		}
		switch e.Action {
		case "output":
			written[e.Test].WriteString(e.Output)
		case "run":
			unfinished = append(unfinished, e.Test)
		case "pass", "fail", "skip":
			unfinished = slices.DeleteFunc(unfinished, func(name string) bool { return name == e.Test })
			if e.Action == "pass" {
				r.passed++
			} else {
				r.tests = append(r.tests, test{e.Test, e.Action, testOutput(written[e.Test].String())})
			}
		}
	}
	// All of them after a panic.
	for _, name := range unfinished {
		r.tests = append(r.tests, test{name, "fail", testOutput(written[name].String() + written[""].String())})
	}
	if r.passed == 0 {
		r.fail("bpf tests: none passed")
	}
	for _, t := range r.tests {
		switch {
		case t.result == "fail":
			r.fail("%s", t.name)
		case t.result == "skip" && !allowedSkip.MatchString(t.output):
			r.fail("%s was skipped: %s", t.name, t.output)
		}
	}
	return nil
}

// testOutput leaves out what the testing package itself says.
func testOutput(s string) string {
	var lines []string
	for line := range strings.Lines(s) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// mustFind is what preflight has to have looked at, and found.
var mustFind = []string{
	"kernel", "kernel types (BTF)", "CAP_BPF", "CAP_PERFMON", "memory cgroup",
	"meminfo", "memory_cgroup", "loadavg", "vmstat", "nodefs",
	"pressure_cpu", "pressure_memory", "pressure_io",
	"hook tp_btf/task_newtask", "hook tp_btf/mark_victim",
	"hook tp_btf/mm_vmscan_memcg_reclaim_begin", "hook tp_btf/block_rq_error", "hook bpf_timer/tick",
}

func (r *report) judgePreflight(text []byte) error {
	var findings []struct{ What, Outcome, Detail string }
	if err := json.Unmarshal(text, &findings); err != nil {
		return fmt.Errorf("read preflight: %w in %q", err, text)
	}
	missing := slices.Clone(mustFind)
	for _, f := range findings {
		if f.Outcome != "ok" && f.Outcome != "off" { // there are no pods in a guest
			r.fail("preflight: %s %s: %s", f.Outcome, f.What, f.Detail)
		}
		if f.What == "memory cgroup" && !strings.HasPrefix(f.Detail, "v2 ") {
			r.fail("preflight: memory cgroup is %s, not v2", f.Detail)
		}
		missing = slices.DeleteFunc(missing, func(what string) bool { return what == f.What })
	}
	if len(missing) > 0 {
		r.fail("preflight says nothing of %s", strings.Join(missing, ", "))
	}
	return nil
}

// snapshot is the part of nodeprobe's that is judged.
type snapshot struct {
	Snapshot struct {
		Tier    string
		Signals []struct {
			Name                string
			Available, Capacity *int64
			Error               string
		}
		Conditions []struct{ Type, Status string }
		Pressure   []struct {
			Resource string
			Full     *struct{}
		}
		Memory   *struct{ Total, MemAvailable, WorkingSet int64 }
		Tasks    *struct{ Total, Max int64 }
		OOMKills *uint64
		Kernel   *struct{ OOMKills, DirectReclaims, CgroupReclaims, BlockErrors *uint64 }
		Errors   []struct{ Source, Error string }
	}
	Node struct {
		Status struct {
			NodeInfo struct{ KernelVersion, Architecture string }
		}
	}
}

func (r *report) judgeSnapshot(res *results, release string) error {
	text := res.files[outputName("snapshot", "stdout")]
	var all snapshot
	if err := json.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("read snapshot: %w in %q", err, text)
	}
	s := &all.Snapshot
	memTotal, err := procFigure(res.files["/proc/meminfo"], "MemTotal:")
	if err != nil {
		return err
	}
	memTotal *= 1024
	kills, err := procFigure(res.files["/proc/vmstat"], "oom_kill")
	if err != nil {
		return err
	}

	r.want(s.Tier == "bpf", "tier %s", s.Tier)
	missing := []string{"memory.available", "nodefs.available", "pid.available"}
	for _, sig := range s.Signals {
		if sig.Available == nil || sig.Capacity == nil {
			continue // Not every file system counts inodes.
		}
		r.want(*sig.Available > 0 && *sig.Available <= *sig.Capacity, "%s %d of %d", sig.Name, *sig.Available, *sig.Capacity)
		if sig.Name == "memory.available" {
			r.want(*sig.Capacity == memTotal, "capacity of memory %d, MemTotal %d", *sig.Capacity, memTotal)
		}
		missing = slices.DeleteFunc(missing, func(name string) bool { return name == sig.Name })
	}
	if len(missing) > 0 {
		r.fail("snapshot has no %s", strings.Join(missing, ", "))
	}
	for _, c := range s.Conditions {
		r.want(c.Status == "False", "%s %s", c.Type, c.Status)
	}
	var stalls []string
	for _, p := range s.Pressure {
		stalls = append(stalls, p.Resource)
		if p.Full == nil {
			r.fail("snapshot has no line full of pressure %s", p.Resource) // Linux 5.13 for the CPU
		}
	}
	slices.Sort(stalls)
	r.want(slices.Equal(stalls, []string{"cpu", "io", "memory"}), "PSI of %v", stalls)
	if m := s.Memory; m == nil {
		r.fail("snapshot has no memory")
	} else {
		r.want(m.WorkingSet > 0 && m.WorkingSet < m.Total && m.MemAvailable > 0 && m.MemAvailable < m.Total,
			"MemAvailable %d, working set %d", m.MemAvailable, m.WorkingSet)
	}
	if t := s.Tasks; t == nil {
		r.fail("snapshot has no tasks")
	} else {
		r.want(t.Total > 10 && t.Total < t.Max, "%d tasks of at most %d", t.Total, t.Max)
	}
	if s.OOMKills == nil {
		r.fail("snapshot has no OOM kills")
	} else {
		// The tests have some processes killed.
		r.want(*s.OOMKills == uint64(kills) && kills > 0, "%d OOM kills since boot, %d in /proc/vmstat", *s.OOMKills, kills)
	}
	if k := s.Kernel; k == nil || k.OOMKills == nil || k.DirectReclaims == nil || k.CgroupReclaims == nil || k.BlockErrors == nil {
		r.fail("snapshot lacks counters of the programs in the kernel")
	}
	for _, e := range s.Errors {
		r.fail("snapshot: %s: %s", e.Source, e.Error)
	}
	if info := all.Node.Status.NodeInfo; info.KernelVersion != release || info.Architecture != r.kernel.arch {
		r.fail("snapshot: Node has kernel %s on %s", info.KernelVersion, info.Architecture)
	}
	return nil
}

func procFigure(text []byte, word string) (int64, error) {
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == word {
			return strconv.ParseInt(f[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("no line %s in %q", word, text)
}

func (r *report) line() string {
	counts := map[string]int{}
	for _, t := range r.tests {
		counts[t.result]++
	}
	verdict := "ok"
	if len(r.failures) > 0 {
		verdict = fmt.Sprintf("%d FAILURES", len(r.failures))
	}
	return fmt.Sprintf("%s (Debian's %s): %s; bpf tests %d passed, %d failed, %d skipped; at /init after %s, off after %s",
		r.kernel, r.version, verdict, r.passed, counts["fail"], counts["skip"],
		r.boot.Round(100*time.Millisecond), r.took.Round(100*time.Millisecond))
}

var sourceLine = regexp.MustCompile(`^\w+\.go:\d+: `)

func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s\n", r.line())
	var skips []string // reasons, in order
	skipped := make(map[string][]string)
	for _, t := range r.tests {
		if t.result == "fail" {
			fmt.Fprintf(w, "  fail %s\n%s", t.name, indent(t.output))
			continue
		}
		reason := sourceLine.ReplaceAllString(t.output, "")
		if skipped[reason] == nil {
			skips = append(skips, reason)
		}
		skipped[reason] = append(skipped[reason], t.name)
	}
	for _, reason := range skips {
		fmt.Fprintf(w, "  skip %s\n%s", reason, indent(strings.Join(skipped[reason], "\n")))
	}
	fmt.Fprint(w, indent(r.table), indent(strings.Join(r.facts, "\n")))
	for _, f := range r.failures {
		fmt.Fprintf(w, "  FAILURE %s\n", strings.ReplaceAll(f, "\n", "\n    "))
	}
}

func indent(s string) string {
	if s = strings.TrimRight(s, "\n"); s == "" {
		return ""
	}
	return "    " + strings.ReplaceAll(s, "\n", "\n    ") + "\n"
}

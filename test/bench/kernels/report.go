package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// report is what came of one kernel.
type report struct {
	kernel   kernel
	storm    bool
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

// name is the argument that asks for it.
func (r *report) name() string {
	if r.storm {
		return "storm-" + r.kernel.String()
	}
	return r.kernel.String()
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

// wantAll fails if some of the wanted names are not found.
func (r *report) wantAll(where string, wanted, found []string) {
	missing := slices.DeleteFunc(slices.Clone(wanted), func(name string) bool { return slices.Contains(found, name) })
	if len(missing) > 0 {
		r.fail("%s has no %s", where, strings.Join(missing, ", "))
	}
}

// A guest has no compiler, so that what needs one is tested on the machine itself. Old
// kernels have no timer, nor programs that a test can call.
var allowedSkip, noTimer = regexp.MustCompile(`"(clang|llvm-strip|go)": executable file not found`), regexp.MustCompile("no bpf_timer/tick|load programs: program ")

// judgeSteps notes which of the guest's steps failed.
func (r *report) judgeSteps(res *results) {
	r.boot, r.took = res.diary.Boot, res.took
	for _, text := range res.diary.Setup {
		r.fail("prepare guest: %s", text)
	}
	for _, o := range res.diary.Steps {
		r.facts = append(r.facts, fmt.Sprintf("%s took %s", o.Name, o.Took))
		// nodeprobe says by its exit code that it cannot have all.
		if o.Error != "" && (!r.kernel.old() || o.Error != "exit status 3") {
			r.fail("%s: %s %s", o.Name, o.Error, bytes.TrimSpace(res.files[outputName(o.Name, "stderr")]))
		}
	}
}

// judge reads the results and notes what is wrong with them. It fails p if they
// cannot be read.
func (r *report) judge(p *program.P, res *results) {
	r.judgeSteps(res)
	r.judgeTests(p, res.files[outputName("bpf tests", "stdout")])
	for line := range strings.Lines(string(res.files[outputName("trial", "stdout")])) {
		r.facts = append(r.facts, "trial: "+strings.TrimSpace(line))
	}
	r.table = string(res.files[outputName("preflight", "stdout")])
	r.judgePreflight(p, res.files[outputName("preflight json", "stdout")])
	r.judgeSnapshot(p, res)
}

// judgeTests takes the output of a test binary.
func (r *report) judgeTests(p *program.P, text []byte) {
	cmd := exec.CommandContext(p.Context(), "go", "tool", "test2json")
	cmd.Stdin = bytes.NewReader(text)
	events := must.Get(cmd.Output())(p)
	written, result, names := map[string]string{}, map[string]string{}, []string(nil)
	for line := range bytes.Lines(events) {
		var e struct{ Action, Test, Output string }
		must.OK(p, json.Unmarshal(line, &e))
		switch written[e.Test] += e.Output; {
		case e.Test == "": // The binary as a whole has an exit code.
		case e.Action == "run":
			names = append(names, e.Test)
		case e.Action == "pass" || e.Action == "fail" || e.Action == "skip":
			result[e.Test] = e.Action
		}
	}
	for _, name := range names {
		if result[name] == "pass" {
			r.passed++
			continue
		}
		t := test{name, cmp.Or(result[name], "fail"), testOutput(written[name])}
		if result[name] == "" { // It panicked, or one beside it.
			t.output += testOutput(written[""])
		}
		r.tests = append(r.tests, t)
		if t.result == "fail" {
			r.fail("%s", name)
		} else if !allowedSkip.MatchString(t.output) && (!r.kernel.old() || !noTimer.MatchString(t.output)) {
			r.fail("%s was skipped: %s", name, t.output)
		}
	}
	if r.passed == 0 {
		r.fail("bpf tests: none passed")
	}
}

// testOutput leaves out what the testing package itself prints.
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

// mustFind is what preflight must have looked for, and found.
var mustFind = []string{
	"kernel", "kernel types (BTF)", "CAP_BPF", "CAP_PERFMON", "memory cgroup",
	"meminfo", "memory_cgroup", "loadavg", "vmstat", "nodefs",
	"pressure_cpu", "pressure_memory", "pressure_io",
	"hook tp_btf/task_newtask", "hook tp_btf/mark_victim",
	"hook tp_btf/mm_vmscan_memcg_reclaim_begin", "hook bpf_timer/tick",
}

func (r *report) judgePreflight(p *program.P, text []byte) {
	var findings []struct{ What, Outcome, Detail string }
	must.OK(p, json.Unmarshal(text, &findings))
	var found []string
	for _, f := range findings {
		if f.Outcome != "ok" && f.Outcome != "off" && (!r.kernel.old() || f.What != "hook bpf_timer/tick") { // there are no pods in a guest
			r.fail("preflight: %s %s: %s", f.Outcome, f.What, f.Detail)
		}
		if f.What == "memory cgroup" && !strings.HasPrefix(f.Detail, "v2 ") {
			r.fail("preflight: memory cgroup is %s, not v2", f.Detail)
		}
		found = append(found, f.What)
	}
	r.wantAll("preflight", mustFind, found)
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
		Memory   struct{ Total, MemAvailable, WorkingSet int64 }
		Tasks    struct{ Total, Max int64 }
		OOMKills int64
		Kernel   *struct{ OOMKills, DirectReclaims, CgroupReclaims, BlockErrors *uint64 }
		Errors   []struct{ Source, Error string }
	}
	Node struct {
		Status struct {
			NodeInfo struct{ KernelVersion, Architecture string }
		}
	}
}

func (r *report) judgeSnapshot(p *program.P, res *results) {
	var all snapshot
	must.OK(p, json.Unmarshal(res.files[outputName("snapshot", "stdout")], &all))
	s := &all.Snapshot
	memTotal := 1024 * procFigure(p, res.files["/proc/meminfo"], "MemTotal:")
	kills := procFigure(p, res.files["/proc/vmstat"], "oom_kill")
	release := strings.TrimSpace(string(res.files[kernelRelease]))
	r.want(strings.HasPrefix(release, r.kernel.release+"."), "release %s", release)
	r.want(s.Tier == "bpf", "tier %s", s.Tier)
	var signals, stalls []string
	for _, sig := range s.Signals {
		if sig.Available == nil || sig.Capacity == nil {
			continue // Not every file system counts inodes.
		}
		signals = append(signals, sig.Name)
		r.want(*sig.Available > 0 && *sig.Available <= *sig.Capacity, "%s %d of %d", sig.Name, *sig.Available, *sig.Capacity)
		if sig.Name == "memory.available" {
			r.want(*sig.Capacity == memTotal, "capacity of memory %d, MemTotal %d", *sig.Capacity, memTotal)
		}
	}
	r.wantAll("snapshot", []string{"memory.available", "nodefs.available", "pid.available"}, signals)
	for _, c := range s.Conditions {
		r.want(c.Status == "False", "%s %s", c.Type, c.Status)
	}
	for _, p := range s.Pressure {
		if p.Full != nil { // since Linux 5.13 for the CPU too
			stalls = append(stalls, p.Resource)
		}
	}
	slices.Sort(stalls)
	wanted := []string{"cpu", "io", "memory"}
	if r.kernel.old() {
		wanted = wanted[1:]
	}
	r.want(slices.Equal(stalls, wanted), "PSI of %v", stalls)
	m := s.Memory
	r.want(m.WorkingSet > 0 && m.WorkingSet < m.Total && m.MemAvailable > 0 && m.MemAvailable < m.Total,
		"MemAvailable %d, working set %d", m.MemAvailable, m.WorkingSet)
	r.want(s.Tasks.Total > 10 && s.Tasks.Total < s.Tasks.Max, "%d tasks of at most %d", s.Tasks.Total, s.Tasks.Max)
	// The tests have some processes killed.
	r.want(s.OOMKills == kills && kills > 0, "%d OOM kills since boot, %d in /proc/vmstat", s.OOMKills, kills)
	if k := s.Kernel; k == nil || k.OOMKills == nil || k.DirectReclaims == nil || k.CgroupReclaims == nil || k.BlockErrors == nil {
		r.fail("snapshot lacks counters of the programs in the kernel")
	}
	for _, e := range s.Errors {
		if r.kernel.old() && noTimer.MatchString(e.Error) {
			continue
		}
		r.fail("snapshot: %s: %s", e.Source, e.Error)
	}
	if info := all.Node.Status.NodeInfo; info.KernelVersion != release || info.Architecture != r.kernel.arch {
		r.fail("snapshot: Node has kernel %s on %s", info.KernelVersion, info.Architecture)
	}
}

func procFigure(p *program.P, text []byte, word string) int64 {
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == word {
			return must.Get(strconv.ParseInt(f[1], 10, 64))(p)
		}
	}
	p.Fatalf("no line %s in %q", word, text)
	return 0
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
	if !r.storm {
		verdict += fmt.Sprintf("; bpf tests %d passed, %d failed, %d skipped", r.passed, counts["fail"], counts["skip"])
	}
	return fmt.Sprintf("%s (Debian's %s): %s; at /init after %s, off after %s",
		r.name(), r.version, verdict, r.boot.Round(100*time.Millisecond), r.took.Round(100*time.Millisecond))
}

func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s\n", r.line())
	for _, t := range r.tests {
		fmt.Fprintf(w, "  %s %s\n%s", t.result, t.name, indent(t.output))
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

package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

var (
	foreignBefore = v1.NodeCondition{Type: "NetworkUnavailable", Status: v1.ConditionFalse, Reason: "RouteCreated"}
	foreignAfter  = v1.NodeCondition{Type: "KernelDeadlock", Status: v1.ConditionFalse, Reason: "KernelHasNoDeadlock"}
)

// These are the kubelet's TestMemoryPressureCondition and its two brothers, and
// what this package does where the kubelet guesses.
func TestPressureCondition(t *testing.T) {
	const now, before, since, later = 1000, 500, 800, 900
	for i, text := range []struct{ True, False [2]string }{
		{
			[2]string{"KubeletHasInsufficientMemory", "kubelet has insufficient memory available"},
			[2]string{"KubeletHasSufficientMemory", "kubelet has sufficient memory available"},
		},
		{
			[2]string{"KubeletHasDiskPressure", "kubelet has disk pressure"},
			[2]string{"KubeletHasNoDiskPressure", "kubelet has no disk pressure"},
		},
		{
			[2]string{"KubeletHasInsufficientPID", "kubelet has insufficient PID available"},
			[2]string{"KubeletHasSufficientPID", "kubelet has sufficient PID available"},
		},
	} {
		is := pressure.Condition(i)
		cond := func(status v1.ConditionStatus, words [2]string, transition, heartbeat int) v1.NodeCondition {
			return v1.NodeCondition{
				Type: v1.NodeConditionType(is.String()), Status: status, Reason: words[0], Message: words[1],
				LastTransitionTime: apitest.At(transition), LastHeartbeatTime: apitest.At(heartbeat),
			}
		}
		yes := func(transition, heartbeat int) v1.NodeCondition {
			return cond(v1.ConditionTrue, text.True, transition, heartbeat)
		}
		no := func(transition, heartbeat int) v1.NodeCondition {
			return cond(v1.ConditionFalse, text.False, transition, heartbeat)
		}
		unknown := [2]string{"NodeStatusUnknown", "Kubelet stopped posting node status."}
		foreign := [2]string{"X", "somebody's words"}
		for _, test := range []struct {
			name    string
			had     []v1.NodeCondition
			verdict pressure.Verdict
			want    []v1.NodeCondition
		}{
			{"new, pressure", nil, pressure.Verdict{Status: pressure.True}, []v1.NodeCondition{yes(now, now)}},
			{"new, none", nil, pressure.Verdict{Status: pressure.False}, []v1.NodeCondition{no(now, now)}},
			{"begins", []v1.NodeCondition{no(before, before)}, pressure.Verdict{Status: pressure.True}, []v1.NodeCondition{yes(now, now)}},
			{"ends", []v1.NodeCondition{yes(before, before)}, pressure.Verdict{Status: pressure.False}, []v1.NodeCondition{no(now, now)}},
			{"goes on", []v1.NodeCondition{yes(before, before)}, pressure.Verdict{Status: pressure.True}, []v1.NodeCondition{yes(before, now)}},
			{"none goes on", []v1.NodeCondition{no(before, before)}, pressure.Verdict{Status: pressure.False}, []v1.NodeCondition{no(before, now)}},

			{
				"began during an outage",
				[]v1.NodeCondition{no(before, before)},
				pressure.Verdict{Status: pressure.True, Since: apitest.At(since).Time},
				[]v1.NodeCondition{yes(since, now)},
			},
			{
				"began before another writer denied it",
				[]v1.NodeCondition{no(later, later)},
				pressure.Verdict{Status: pressure.True, Since: apitest.At(since).Time},
				[]v1.NodeCondition{yes(now, now)},
			},
			{
				"began in the future: the clock was set back",
				[]v1.NodeCondition{no(before, before)},
				pressure.Verdict{Status: pressure.True, Since: apitest.At(now + 1).Time},
				[]v1.NodeCondition{yes(now, now)},
			},
			{
				"V18: the node controller gave up on us",
				[]v1.NodeCondition{cond(v1.ConditionUnknown, unknown, later, before)},
				pressure.Verdict{Status: pressure.False, Since: apitest.At(since).Time},
				[]v1.NodeCondition{no(now, now)},
			},
			{
				"V19: foreign words for the same status",
				[]v1.NodeCondition{cond(v1.ConditionFalse, foreign, before, before)},
				pressure.Verdict{Status: pressure.False},
				[]v1.NodeCondition{cond(v1.ConditionFalse, foreign, before, now)},
			},
			{
				"frozen",
				[]v1.NodeCondition{yes(before, before)},
				pressure.Verdict{Status: pressure.True, Frozen: true},
				[]v1.NodeCondition{yes(before, now)},
			},
			{
				"no evidence yet, new", nil,
				pressure.Verdict{},
				[]v1.NodeCondition{cond(v1.ConditionUnknown, [2]string{unobserved.reason, unobserved.message}, now, now)},
			},
			{
				"no evidence yet against what there is",
				[]v1.NodeCondition{yes(before, before)},
				pressure.Verdict{Frozen: true},
				[]v1.NodeCondition{yes(before, now)},
			},
			{
				"no evidence yet for what the node controller says",
				[]v1.NodeCondition{cond(v1.ConditionUnknown, unknown, later, before)},
				pressure.Verdict{Frozen: true},
				[]v1.NodeCondition{cond(v1.ConditionUnknown, unknown, later, now)},
			},
			{
				"the last of two, where it is",
				[]v1.NodeCondition{foreignBefore, no(before, before), yes(later, before), foreignAfter},
				pressure.Verdict{Status: pressure.False},
				[]v1.NodeCondition{foreignBefore, no(before, before), no(now, now), foreignAfter},
			},
			{
				"new, after those of others",
				[]v1.NodeCondition{foreignBefore, foreignAfter},
				pressure.Verdict{Status: pressure.False},
				[]v1.NodeCondition{foreignBefore, foreignAfter, no(now, now)},
			},
		} {
			t.Run(is.String()+"/"+test.name, func(t *testing.T) {
				test.verdict.Condition = is
				node := &v1.Node{}
				node.Status.Conditions = test.had
				set(t, node, pressureCondition(&test.verdict, apitest.At(now).Time))
				apitest.Diff(t, "conditions", test.want, node.Status.Conditions, apitest.SameTimes())
			})
		}
	}
}

func TestReadyCondition(t *testing.T) {
	const now, before = 1000, 500
	cond := func(status v1.ConditionStatus, message string, transition, heartbeat int) v1.NodeCondition {
		reason := "KubeletReady"
		if status == v1.ConditionFalse {
			reason = "KubeletNotReady"
		}
		return v1.NodeCondition{
			Type: v1.NodeReady, Status: status, Reason: reason, Message: message,
			LastTransitionTime: apitest.At(transition), LastHeartbeatTime: apitest.At(heartbeat),
		}
	}
	const well = "kubelet is posting ready status"
	full := map[string]string{"cpu": "0", "memory": "0", "pods": "0", "ephemeral-storage": "0"}
	foreign := v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "X", Message: "x", LastTransitionTime: apitest.At(before)}
	for _, test := range []struct {
		name        string
		had         []v1.NodeCondition
		capacity    map[string]string
		noIsolation bool
		unhealthy   error
		want        []v1.NodeCondition
	}{
		{"new", nil, full, false, nil, []v1.NodeCondition{cond(v1.ConditionTrue, well, now, now)}},
		{
			"no capacity", nil, nil, false, nil,
			[]v1.NodeCondition{cond(v1.ConditionFalse, "missing node capacity for resources: cpu, memory, pods, ephemeral-storage", now, now)},
		},
		{
			"no capacity, without isolation", nil, nil, true, nil,
			[]v1.NodeCondition{cond(v1.ConditionFalse, "missing node capacity for resources: cpu, memory, pods", now, now)},
		},
		{
			"one missing", nil,
			map[string]string{"cpu": "1", "memory": "1", "pods": "1"},
			false, nil,
			[]v1.NodeCondition{cond(v1.ConditionFalse, "missing node capacity for resources: ephemeral-storage", now, now)},
		},
		{
			"not missing, as it is not shown", nil,
			map[string]string{"cpu": "1", "memory": "1", "pods": "1"},
			true, nil,
			[]v1.NodeCondition{cond(v1.ConditionTrue, well, now, now)},
		},
		{"stays ready", []v1.NodeCondition{cond(v1.ConditionTrue, well, before, before)}, full, false, nil, []v1.NodeCondition{cond(v1.ConditionTrue, well, before, now)}},
		{
			"gets unhealthy",
			[]v1.NodeCondition{cond(v1.ConditionTrue, well, before, before)},
			full, false, errors.New("sampler is stuck"),
			[]v1.NodeCondition{cond(v1.ConditionFalse, "sampler is stuck", now, now)},
		},
		{
			"V15: unhealthy for another reason",
			[]v1.NodeCondition{cond(v1.ConditionFalse, "a", before, before)},
			full, false, errors.New("b"),
			[]v1.NodeCondition{cond(v1.ConditionFalse, "b", before, now)},
		},
		{"gets well", []v1.NodeCondition{cond(v1.ConditionFalse, "a", before, before)}, full, false, nil, []v1.NodeCondition{cond(v1.ConditionTrue, well, now, now)}},
		{"foreign words are replaced", []v1.NodeCondition{foreign}, full, false, nil, []v1.NodeCondition{cond(v1.ConditionTrue, well, before, now)}},
		{
			"unhealthy before missing", nil,
			map[string]string{},
			true, errors.New("sick"),
			[]v1.NodeCondition{cond(v1.ConditionFalse, "[sick, missing node capacity for resources: cpu, memory, pods]", now, now)},
		},
		{
			"where it is, and nothing else",
			[]v1.NodeCondition{foreignBefore, cond(v1.ConditionTrue, well, before, before), foreignAfter},
			full, false, nil,
			[]v1.NodeCondition{foreignBefore, cond(v1.ConditionTrue, well, before, now), foreignAfter},
		},
		{
			"the first of two, which is the one that is read, and that a patch changes",
			[]v1.NodeCondition{cond(v1.ConditionFalse, "a", before, before), foreignAfter, cond(v1.ConditionTrue, well, before, before)},
			full, false, nil,
			[]v1.NodeCondition{cond(v1.ConditionTrue, well, now, now), foreignAfter, cond(v1.ConditionTrue, well, before, before)},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			node := &v1.Node{}
			node.Status.Conditions, node.Status.Capacity = test.had, apitest.Resources(test.capacity)
			set(t, node, readyCondition(!test.noIsolation, &readiness{unhealthy: test.unhealthy}, apitest.At(now).Time))
			apitest.Diff(t, "conditions", test.want, node.Status.Conditions, apitest.SameTimes())
		})
	}
}

// What keeps the node from being ready, in the kubelet's order. What a kubelet reports
// of its own parts (volumes, PLEG) has no counterpart here.
func TestReadyInputs(t *testing.T) {
	down, network := errors.New("container runtime is down"), errors.New("network state unknown")
	shutdown := errors.New("node is shutting down")
	const well = "kubelet is posting ready status"
	fails := func(text string) func() error { return func() error { return errors.New(text) } }
	for _, test := range []struct {
		name    string
		cfg     Config
		runtime error
		leaving error
		missing bool
		noQuota bool
		want    string
	}{
		{name: "none", want: well},
		{name: "CPU limits have no effect", noQuota: true, want: well + ". WARNING: CPU hardcapping unsupported"},
		{name: "the same, and not ready", noQuota: true, leaving: shutdown, want: "node is shutting down. WARNING: CPU hardcapping unsupported"},
		{name: "runtime", runtime: down, want: "container runtime is down"},
		{name: "runtime and network", runtime: errors.Join(down, network), want: "[container runtime is down, network state unknown]"},
		{name: "V20: the same twice", runtime: errors.Join(down, errors.New(down.Error())), want: "container runtime is down"},
		{name: "unhealthy", cfg: Config{Healthy: fails("sampler is stuck")}, want: "sampler is stuck"},
		{name: "shutdown", leaving: shutdown, want: "node is shutting down"},
		{name: "network of an agent", cfg: Config{NetworkErrors: fails("no uplink")}, want: "no uplink"},
		{name: "storage of an agent", cfg: Config{StorageErrors: fails("no disk")}, want: "no disk"},
		{name: "soft requirements of an agent", cfg: Config{SoftRequirements: fails("no GPU")}, want: well + ". WARNING: no GPU"},
		{
			name: "soft requirements of both", cfg: Config{SoftRequirements: fails("no GPU")}, noQuota: true,
			want: well + ". WARNING: [CPU hardcapping unsupported, no GPU]",
		},
		{
			name: "all of them", runtime: errors.Join(down, network), leaving: shutdown, missing: true,
			cfg: Config{
				NetworkErrors: fails("no uplink"), StorageErrors: fails("no disk"), Healthy: fails("sampler is stuck"), SoftRequirements: fails("no GPU"),
			},
			want: "[container runtime is down, network state unknown, no uplink, no disk, sampler is stuck, node is shutting down, " +
				"missing node capacity for resources: memory, ephemeral-storage]. WARNING: no GPU",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			node := &v1.Node{}
			node.Status.Capacity = apitest.Resources(map[string]string{"cpu": "0", "memory": "0", "pods": "0", "ephemeral-storage": "0"})
			if test.missing {
				delete(node.Status.Capacity, v1.ResourceMemory)
				delete(node.Status.Capacity, v1.ResourceEphemeralStorage)
			}
			facts := &Facts{Leaving: test.leaving}
			test.cfg.RuntimeErrors = func() error { return test.runtime }
			facts.Snapshot.Machine.NoCPUQuota = test.noQuota
			r := New(test.cfg).readiness(facts)
			set(t, node, readyCondition(true, &r, apitest.Epoch))
			ready := condition(node, v1.NodeReady)
			apitest.Diff(t, "message", test.want, ready.Message)
			is, reason := v1.ConditionFalse, "KubeletNotReady"
			if strings.HasPrefix(test.want, well) {
				is, reason = v1.ConditionTrue, "KubeletReady"
			}
			apitest.Diff(t, "status and reason", []string{string(is), reason}, []string{string(ready.Status), ready.Reason})
		})
	}
}

// V20 and the rules of the kubelet's NewAggregate.
func TestAggregate(t *testing.T) {
	a, b, c := errors.New("a"), errors.New("b"), errors.New("c")
	for _, test := range []struct {
		want string
		errs []error
	}{
		{"", nil},
		{"", []error{nil, nil}},
		{"a", []error{a}},
		{"a", []error{nil, a}},
		{"a", []error{a, errors.New("a")}},
		{"[a, b]", []error{a, b}},
		{"[a, b, c]", []error{errors.Join(a, b), errors.Join(errors.Join(b, c), a)}},
		{"a", []error{errors.Join(a)}},
		{"[x: a\nb, c]", []error{fmt.Errorf("x: %w", errors.Join(a, b)), c}},
		{"[a and b, c]", []error{fmt.Errorf("%w and %w", a, b), c}},
		{"x", []error{noCauses{}}},
	} {
		apitest.Diff(t, fmt.Sprint(test.errs), test.want, aggregate(test.errs...))
	}
}

type noCauses struct{}

func (noCauses) Error() string   { return "x" }
func (noCauses) Unwrap() []error { return nil }

// Every condition ends where the kubelet puts it: Ready is the last of those
// that the kubelet owns, however often the pipeline runs.
func TestConditionOrder(t *testing.T) {
	cfg := Config{NodeName: apitest.NodeName, Addresses: testAddresses(), Resources: testResources()}
	types := func(node *v1.Node) (list []v1.NodeConditionType) {
		for _, c := range node.Status.Conditions {
			list = append(list, c.Type)
		}
		return list
	}
	facts := machineFacts(apitest.Epoch)
	node := initial(t, cfg, &facts)
	want := []v1.NodeConditionType{"MemoryPressure", "DiskPressure", "PIDPressure", "Ready"}
	apitest.Diff(t, "new", want, types(node))

	node.Status.Conditions = append(node.Status.Conditions, foreignAfter)
	for i := range 3 {
		facts.Verdicts[i].Status = pressure.True
		set(t, node, func(ctx context.Context, n *v1.Node) error {
			return New(cfg).pass(&facts, apitest.Epoch.Add(time.Minute)).apply(ctx, n)
		})
		apitest.Diff(t, "existing", append(want[:4:4], foreignAfter.Type), types(node))
	}
}

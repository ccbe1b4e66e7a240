package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

// stubEnv makes this test binary behave as nodeprobe, so that the harness is
// tested without the product.
const stubEnv = "NODEPROBE_FOOTPRINT_STUB"

func TestMain(m *testing.M) {
	if os.Getenv(stubEnv) == "1" && len(os.Args) > 1 && os.Args[1] == "run" {
		if err := stub(os.Args[2:]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	pressure.Main()
	os.Exit(m.Run())
}

// stub serves metrics, and if the config says own it creates a Lease.
func stub(args []string) error {
	flags := flag.NewFlagSet("stub", flag.ContinueOnError)
	config := flags.String("config", "", "")
	kubeconfig := flags.String("kubeconfig", "", "")
	address := flags.String("web.listen-address", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	data, err := os.ReadFile(*config)
	if err != nil {
		return err
	}
	if strings.Contains(string(data), "mode: own") {
		rest, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
		if err != nil {
			return err
		}
		client, err := kubernetes.NewForConfig(rest)
		if err != nil {
			return err
		}
		now := metav1.NowMicro()
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Spec: coordinationv1.LeaseSpec{RenewTime: &now}}
		if _, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(context.Background(), lease, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	http.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "nodeprobe_stub 1") })
	return http.ListenAndServe(*address, nil)
}

func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a control plane; -short is set")
	}
	t.Setenv(stubEnv, "1")
	self := must.Get(os.Executable())(t)
	var stdout bytes.Buffer
	must.OK(t, run(t.Context(), []string{"-nodeprobe", self, "-window", "9s", "-warmup", "100ms"}, &stdout, os.Stderr))
	t.Logf("\n%s", &stdout)
	for _, want := range []string{
		`rss_observe=\d+\.\d MiB budget=14`,
		`rss_own=\d+\.\d MiB budget=20`,
		`cpu_own=\d+\.\d ms/min budget=10`,
		`wakeups_own=\d+\.\d /s budget=3`,
		`binary_size=\d+\.\d MB budget=36`,
	} {
		if !regexp.MustCompile(`(?m)^RESULT ` + want + ` peer=node_exporter:\d+\.\d$`).Match(stdout.Bytes()) {
			t.Errorf("no line like RESULT %s", want)
		}
	}
}

func TestContainerResults(t *testing.T) {
	cost := func(ms, mib int64) map[string]footprint.Cost {
		return map[string]footprint.Cost{"nodeprobe own": {CPU: time.Duration(ms) * time.Millisecond, RSS: mib << 20}}
	}
	var out bytes.Buffer
	printRatios(&out, []string{"nodeprobe own"}, 250,
		[]map[string]footprint.Cost{cost(10, 20), cost(90, 20), cost(12, 22)},
		[]map[string]footprint.Cost{cost(15, 21), cost(11, 21), cost(80, 21)})
	const want = "nodeprobe own: CPU 12.0 -> 15.0 ms/min, RSS 20.00 -> 21.00 MiB\n" +
		"RESULT cpu_own_250_containers=1.250 x budget=1.05\nRESULT rss_own_250_containers=1.050 x budget=1.05\n"
	if out.String() != want {
		t.Errorf("got %s, want %s", &out, want)
	}
}

func TestRunReportsDeadSubject(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a control plane; -short is set")
	}
	err := run(t.Context(), []string{"-nodeprobe", "/bin/false"}, &bytes.Buffer{}, os.Stderr)
	if err == nil || !strings.Contains(err.Error(), observeName+" ended early") {
		t.Errorf("got %v, want that nodeprobe ended early", err)
	}
}

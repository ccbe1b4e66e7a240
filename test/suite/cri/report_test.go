package cri

import (
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeprobe/nodeprobe/probe/cri"
)

var benchReport = flag.Bool("bench-report", false, "measure for some seconds what asking containerd costs beside grpc and print RESULT lines")

// TestBenchReport asserts nothing about time: a busy machine would fail it. The
// contenders take turns. Ours connects each time, grpc keeps its connection; both
// ask for the status.
func TestBenchReport(t *testing.T) {
	if !*benchReport {
		t.Skip("without -bench-report")
	}
	const rounds, turn = 101, 20
	dir := t.TempDir()
	path := filepath.Join(dir, "sock")
	startContainerd(t, dir)
	importImages(t, path, 50)
	connection, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	runtime := runtimeapi.NewRuntimeServiceClient(connection)
	rarely, err := cri.New(cri.Config{Endpoint: path, ImageInterval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	everything := newSampler(t, path)
	contenders := [...]func(){
		func() {
			if _, err := runtime.Status(t.Context(), &runtimeapi.StatusRequest{}); err != nil {
				t.Fatal(err)
			}
		},
		func() { mustRead(t, rarely) },
		func() { mustRead(t, everything) },
	}
	var us [len(contenders)][]float64
	for range rounds {
		for i, ask := range contenders {
			start := time.Now()
			for range turn {
				ask()
			}
			us[i] = append(us[i], float64(time.Since(start).Microseconds())/turn)
		}
	}
	median := func(v []float64) float64 {
		slices.Sort(v)
		return v[len(v)/2]
	}
	fmt.Printf("RESULT cri_sample_us=%.0f us peer=grpc:%.0f\n", median(us[1]), median(us[0]))
	fmt.Printf("RESULT cri_sample_allocs=%.0f allocs/op peer=grpc:%.0f\n",
		testing.AllocsPerRun(200, contenders[1]), testing.AllocsPerRun(200, contenders[0]))
	fmt.Printf("RESULT cri_sample_50_images_us=%.0f us\n", median(us[2]))
}

// Command outsider is a node agent of one's own: it registers the machine as a Node, and
// shows on it how many GPUs a file says there are. Usage: outsider NODE KUBECONFIG FILE
package main

import (
	"context"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nodeprobe/nodeprobe"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	api, err := clientcmd.BuildConfigFromFlags("", os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	cfg := nodeprobe.DefaultConfig()
	cfg.Mode, cfg.NodeName, cfg.API = nodeprobe.Own, os.Args[1], api
	cfg.FieldManager, cfg.Version, cfg.LeaseDuration = "outsider", "v1.2.3", 4*time.Second
	cfg.Logger = slog.Default()
	cfg.Setters = []nodeprobe.Setter{func(_ context.Context, node *v1.Node) error {
		text, err := os.ReadFile(os.Args[3])
		if err != nil {
			return err
		}
		gpus, err := resource.ParseQuantity(strings.TrimSpace(string(text)))
		if err != nil {
			return err
		}
		node.Labels["example.com/gpu-agent"] = "outsider"
		node.Status.Capacity["example.com/gpu"] = gpus
		node.Status.Allocatable["example.com/gpu"] = gpus
		return nil
	}}
	agent, err := nodeprobe.New(cfg)
	if err != nil {
		log.Fatal(err)
	}
	go func() { // a real one would be told by its devices' driver
		for range time.Tick(200 * time.Millisecond) {
			agent.Update()
		}
	}()
	if err := agent.Run(ctx); ctx.Err() == nil {
		log.Fatal(err)
	}
}

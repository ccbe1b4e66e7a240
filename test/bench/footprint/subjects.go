package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

const (
	observeName = "nodeprobe observe"
	ownName     = "nodeprobe own"

	nodeName = "footprint"
	// leaseDuration is the kubelet's default, and nodeprobe's.
	leaseDuration = 40 * time.Second

	readyTimeout = 2 * time.Minute
	// stopGrace is for nodeprobe to detach from the kernel.
	stopGrace = 5 * time.Second
)

// startSubjects starts what is to be measured and waits until all of it answers
// scrapes. stop is valid even if err is not nil.
func startSubjects(ctx context.Context, dir, binary, peerBinary string, cp *controlplane.ControlPlane) (_ []footprint.Subject, stop func(), err error) {
	var processes []*process.Process
	stop = func() {
		for _, p := range processes {
			p.Stop(stopGrace)
		}
	}
	kubeconfig, err := cp.NodeKubeconfig(nodeName)
	if err != nil {
		return nil, stop, err
	}
	ports, err := process.FreePorts(3)
	if err != nil {
		return nil, stop, err
	}
	address := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	observe, err := writeConfig(dir, "observe")
	if err != nil {
		return nil, stop, err
	}
	own, err := writeConfig(dir, "own")
	if err != nil {
		return nil, stop, err
	}

	var subjects []footprint.Subject
	for i, s := range []struct {
		name, path string
		args       []string
	}{
		{observeName, binary, []string{"run", "--config", observe, "--web.listen-address", address(0)}},
		{ownName, binary, []string{"run", "--config", own, "--kubeconfig", kubeconfig, "--web.listen-address", address(1)}},
		{peer.Name, peerBinary, []string{"--web.listen-address=" + address(2)}},
	} {
		p, err := process.Start(process.Spec{
			Name: s.name, Path: s.path, Args: s.args,
			LogFile: filepath.Join(dir, fmt.Sprintf("%d.log", i)),
		})
		if err != nil {
			return nil, stop, err
		}
		processes = append(processes, p)
		subjects = append(subjects, footprint.Subject{Name: s.name, PID: p.PID(), MetricsURL: "http://" + address(i) + "/metrics"})
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for i, p := range processes {
		if err := p.WaitReady(ctx, func(ctx context.Context) error {
			_, err := footprint.Scrape(ctx, subjects[i].MetricsURL)
			return err
		}); err != nil {
			return nil, stop, err
		}
	}
	return subjects, stop, nil
}

func writeConfig(dir, mode string) (file string, err error) {
	file = filepath.Join(dir, mode+".yaml")
	config := "apiVersion: nodeprobe.dev/v1alpha1\nkind: NodeProbeConfiguration\nmode: " + mode + "\nnodeName: " + nodeName + "\n"
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return "", fmt.Errorf("write config: %w", err)
	}
	return file, nil
}

// renewing fails unless the node's Lease has been renewed lately.
func renewing(ctx context.Context, cp *controlplane.ControlPlane) error {
	lease, err := cp.Client().CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("check that %s works: %w", ownName, err)
	}
	if renewed := lease.Spec.RenewTime; renewed == nil || time.Since(renewed.Time) > leaseDuration {
		return fmt.Errorf("check that %s works: it renewed its Lease at %v", ownName, renewed)
	}
	return nil
}

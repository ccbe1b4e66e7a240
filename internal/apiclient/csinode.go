package apiclient

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeprobe/nodeprobe/internal/once"
	"github.com/nodeprobe/nodeprobe/status/node"
)

const (
	// csiNodeInterval is how often the CSINode is read: drivers and their limits
	// rarely change. csiNodeRetry is for when it cannot be read.
	csiNodeInterval = 5 * time.Minute
	csiNodeRetry    = 30 * time.Second
	// readSlack is how long a read may take besides its call.
	readSlack = 10 * time.Second
)

// CSINode reads from the node's CSINode how many volumes its drivers can attach.
type CSINode struct {
	// get returns the CSINode as JSON.
	get     func(context.Context) ([]byte, error)
	timeout time.Duration
	log     *slog.Logger
	alive   func(within time.Duration)

	last node.VolumeLimits // what was read last
}

// NewCSINode returns what reads the CSINode of the named node. Timeout
// bounds a read; alive is called with the time within which it will be called again, 0 for
// however long.
func NewCSINode(client *Clients, nodeName string, timeout time.Duration, alive func(within time.Duration), log *slog.Logger) *CSINode {
	path := "/apis/storage.k8s.io/v1/csinodes/" + nodeName
	return &CSINode{
		get:     func(ctx context.Context) ([]byte, error) { return client.Get(ctx, path) },
		timeout: timeout, alive: alive, log: log,
	}
}

// Run reads until ctx ends, and returns its cause. It calls changed with a copy of the
// limits when one has changed.
func (c *CSINode) Run(ctx context.Context, changed func(node.VolumeLimits)) error {
	for {
		c.alive(c.timeout + readSlack)
		wait := csiNodeInterval
		limits, err := c.read(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			c.log.Info("volume limits can be read again", once.Recovery, "volume limits")
		}
		switch {
		case err != nil:
			c.log.Warn("volume limits cannot be read", once.Failure, "volume limits", "err", err)
			wait = csiNodeRetry
		case !maps.Equal(c.last, limits):
			c.last = limits
			changed(maps.Clone(limits))
		}
		c.alive(0)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

// read returns the limits in the CSINode. There is none before the first driver.
func (c *CSINode) read(ctx context.Context) (node.VolumeLimits, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	data, err := c.get(ctx)
	if apierrors.IsNotFound(err) {
		return node.VolumeLimits{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get CSINode: %w", err)
	}
	limits, err := parseCSINode(data)
	if err != nil {
		return nil, fmt.Errorf("decode CSINode: %w", err)
	}
	return limits, nil
}

// parseCSINode takes the limits out of a CSINode. A driver without one is bounded by
// nothing. The API's own types would bring the whole group into the binary.
func parseCSINode(data []byte) (node.VolumeLimits, error) {
	var csiNode struct {
		Spec struct {
			Drivers []struct {
				Name        string
				Allocatable struct{ Count *int64 }
			}
		}
	}
	if err := json.Unmarshal(data, &csiNode); err != nil {
		return nil, err
	}
	limits := node.VolumeLimits{}
	for _, d := range csiNode.Spec.Drivers {
		count := d.Allocatable.Count
		if count == nil {
			continue
		}
		if *count < 0 {
			return nil, fmt.Errorf("driver %s: limit %d is negative", d.Name, *count)
		}
		limits[node.VolumeLimitName(d.Name)] = *count
	}
	return limits, nil
}

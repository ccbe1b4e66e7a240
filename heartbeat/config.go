package heartbeat

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Config is what New needs. All functions are called from Run's goroutine and
// hold up the heartbeat while they run.
type Config struct {
	// Leases reads and writes the lease. Required.
	Leases Leases
	// NodeName is the name of the Node. The lease is named so too, and so is
	// the holder in a lease that the Heartbeater creates. Required.
	NodeName string
	// Duration is how long a renewal is good for, in whole seconds; the kubelet
	// has 40 s. The lease is renewed every quarter of it. Required.
	Duration time.Duration
	// Timeout bounds each call of Leases and Owner. The default, 0, is Duration
	// or 10 s, whichever is less. It may not exceed Duration.
	Timeout time.Duration

	// Healthy returns nil while the node's agent does its work; else the lease
	// is not renewed, for the reason returned: one that is NotFound says that the Node
	// was deleted. It must return at once. Required.
	Healthy func() error
	// Owner returns the reference to the Node that is put into a lease without
	// owner references: apiVersion v1, kind Node, name and UID. While it returns
	// an error that is NotFound, the Node does not exist and no lease is created.
	// It must return when its context ends. Required.
	Owner func(context.Context) (metav1.OwnerReference, error)
	// OnFailure is called after each failed try to update the lease but the
	// first of its five, and not after conflicts: the time to close idle
	// connections, of which one may be dead. Optional.
	OnFailure func()
	// OnLost is called once whenever the lease that we had turns out to be
	// deleted, even if it has been re-created since: the Node, which owns it,
	// may be gone too, and Owner, which is called next where the lease is to be
	// created, must know. It must not wait for the Heartbeater. Optional.
	OnLost func()

	// FieldManager is our field manager. Where it is given, a lease that another one has
	// lately renewed is somebody else's at first sight. Optional.
	FieldManager string

	// Alive is called as Run goes on, with the time in which it will be again
	// unless Run is stuck. It goes on without an API server, too. Optional.
	Alive func(within time.Duration)

	// OnForeign is called once per renewal of somebody else's that is noticed. It
	// must not wait for the Heartbeater. Optional.
	OnForeign func(State)

	// Logger gets a line when renewals begin to end differently, at levels Info
	// and Warn, and one for each attempt at Debug. Default: none.
	Logger *slog.Logger
	// Registerer gets the metrics. Default: none.
	Registerer prometheus.Registerer
}

// validate returns an error that starts with the name of the wrong field.
func (c Config) validate() error {
	switch {
	case c.Leases == nil:
		return errors.New("Leases: missing")
	case c.Healthy == nil:
		return errors.New("Healthy: missing")
	case c.Owner == nil:
		return errors.New("Owner: missing")
	case c.Duration < time.Second || c.Duration%time.Second != 0 || c.Duration/time.Second > math.MaxInt32:
		return fmt.Errorf("Duration: %v is not a whole number of seconds from 1 to %d", c.Duration, math.MaxInt32)
	case c.Timeout < 0 || c.Timeout > c.Duration:
		return fmt.Errorf("Timeout: %v is not between 0 and the duration, %v", c.Timeout, c.Duration)
	}
	if reasons := validation.IsDNS1123Subdomain(c.NodeName); len(reasons) > 0 {
		return fmt.Errorf("NodeName: %q is not the name of a node: %s", c.NodeName, strings.Join(reasons, ", "))
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = min(10*time.Second, c.Duration)
	}
	if c.Alive == nil {
		c.Alive = func(time.Duration) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

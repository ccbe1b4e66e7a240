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

// Config is what a Heartbeater is made from. All functions are called from Run's
// goroutine, and delay the heartbeat while they run.
type Config struct {
	// Leases reads and writes the lease. Required.
	Leases Leases
	// NodeName is the name of the Node. It is also that of the lease, and of the
	// holder in a lease that the Heartbeater creates. Required.
	NodeName string
	// Duration is how long a renewal is valid, in whole seconds; a kubelet's is 40 s.
	// The lease is renewed every quarter of it. Required.
	Duration time.Duration
	// Timeout bounds each call of Leases and Owner. The default, 0, is Duration
	// or 10 s, whichever is less. It may not exceed Duration.
	Timeout time.Duration

	// Healthy returns nil while the node's agent works. Otherwise the lease is not
	// renewed, for the reason returned; a NotFound error means that the Node was
	// deleted. It must return at once. Required.
	Healthy func() error
	// Owner returns the reference to the Node that a lease without owner references
	// gets: apiVersion v1, kind Node, name and UID. While it returns a NotFound error,
	// the Node does not exist and no lease is created. It must return when its context
	// ends. Required.
	Owner func(context.Context) (metav1.OwnerReference, error)
	// OnFailure is called after each failed try to update the lease but the first of
	// its five, and not after conflicts: a connection may be half dead, and idle ones
	// should be closed. Optional.
	OnFailure func()
	// OnLost is called whenever the known lease turns out to be deleted, even if it
	// has been re-created since: the Node, which owns it, may be gone too, and Owner,
	// which is called next to create the lease, must know. It must not wait for the
	// Heartbeater. Optional.
	OnLost func()

	// FieldManager is the one under which the API server records our writes. With it, a
	// lease that another field manager has lately renewed is foreign at first sight.
	// Optional.
	FieldManager string

	// Alive is called with the time within which it will be called again, unless Run is
	// stuck. An API server that is away does not matter. Optional.
	Alive func(within time.Duration)

	// OnForeign is called once for each foreign renewal that is noticed. It must not wait
	// for the Heartbeater. Optional.
	OnForeign func(State)

	// Logger gets a line when the result of renewals changes, at levels Info and Warn,
	// and one for each attempt at Debug. Default: none.
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

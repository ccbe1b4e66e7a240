package status

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/internal/once"
)

// Config is what an Updater is made from.
type Config struct {
	NodeName string
	// Nodes is the API. Timeout bounds each call to it, and how long a watch may
	// take to begin.
	Nodes   Nodes
	Timeout time.Duration
	// Content is what is posted.
	Content Content
	// Registrar creates the Node if there is none. If it is deleted after that, it
	// stays deleted. If nil, others register the Node.
	Registrar Registrar

	// Adopt is called with a Node that this process did not create, before anything is
	// posted: its conditions are history that the evaluator does not know. The next
	// Draft must take it into account. It is called again where registration is
	// retried, and not for a Node that replaces the registered one.
	Adopt func(*v1.Node)
	// Allow returns why nothing may be written, or nil. It is called before each write
	// with the last known Node, or nil if there is none.
	Allow func(*v1.Node) error
	// Record records an Event. It must not block.
	Record func(kind, reason, message string)
	// Seen is called with each version of the Node that becomes known. It must not
	// block.
	Seen func(*v1.Node)
	// OnFailure is called at each failure to post but the first of a pass: the
	// connection may be half dead.
	OnFailure func()
	// Alive is called with the time within which it will be called again, unless Run
	// is stuck. An API server that is away does not matter.
	Alive func(within time.Duration)

	// UpdateFrequency is the time between two passes that nothing asked for.
	// ReportFrequency is the time after which an unchanged status is posted; 0 is never.
	UpdateFrequency, ReportFrequency time.Duration
	// Spread posts an unchanged status at a time of the report period that depends on
	// the node's name, so that a fleet's posts are spread evenly. Otherwise it is posted
	// a period after the last post, with a random delay after a change.
	Spread bool
	// RetryRefused retries at once what the API server has refused for good (forbidden,
	// invalid), as a kubelet does. Otherwise the next regular pass does: a missing
	// permission, or a policy, concerns a whole fleet at once.
	RetryRefused bool
	// RetryPeriod is the longest time to the next pass after one whose attempts have
	// all failed; 0 is UpdateFrequency.
	RetryPeriod time.Duration

	// Logger is silent and Registerer is not used if nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

func (c *Config) validate() error {
	switch {
	case c.NodeName == "":
		return errors.New("node name is empty")
	case c.Nodes == nil || c.Content == nil:
		return errors.New("nodes and content must be given")
	case c.UpdateFrequency <= 0:
		return fmt.Errorf("update frequency %s is not positive", c.UpdateFrequency)
	case c.ReportFrequency < 0:
		return fmt.Errorf("report frequency %s is negative", c.ReportFrequency)
	case c.RetryPeriod < 0:
		return fmt.Errorf("retry period %s is negative", c.RetryPeriod)
	case c.Timeout <= 0:
		return fmt.Errorf("timeout %s is not positive", c.Timeout)
	}
	return nil
}

// withDefaults fills in what may be left out, and bounds the calls to the API.
func (c Config) withDefaults() Config {
	c.Nodes = boundedNodes{c.Nodes, c.Timeout}
	if c.Adopt == nil {
		c.Adopt = func(*v1.Node) {}
	}
	if c.Allow == nil {
		c.Allow = func(*v1.Node) error { return nil }
	}
	if c.OnFailure == nil {
		c.OnFailure = func() {}
	}
	if c.Seen == nil {
		c.Seen = func(*v1.Node) {}
	}
	if c.Alive == nil {
		c.Alive = func(time.Duration) {}
	}
	if c.Record == nil {
		c.Record = func(string, string, string) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Logger = once.Logger(c.Logger)
	return c
}

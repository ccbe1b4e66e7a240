package status

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// Config says what the Node is to say, and how to reach it.
type Config struct {
	NodeName string
	// Nodes is the API. Timeout bounds each call to it, and how long a watch may
	// take to begin.
	Nodes   Nodes
	Timeout time.Duration
	// Facts returns the present facts. It is called at each pass.
	Facts func() Facts
	// Adopt is called when a Node is found that this process did not create,
	// before anything is posted: what its conditions say is history that the
	// evaluator does not know. The next call of Facts must take it into account.
	// It is called again where registration has to be tried again, and not for a Node
	// that replaces the one that was registered.
	Adopt func(*v1.Node)
	// Allow returns why nothing must be written, or nil. It is given the Node as
	// last seen, nil if there is none, before each write.
	Allow func(*v1.Node) error
	// OnFailure is called at each failure to post but the first of a pass: the
	// connection may be half dead.
	OnFailure func()
	// Alive is called as Run goes on, with the time in which it will be again
	// unless Run is stuck. It goes on without an API server, too.
	Alive func(within time.Duration)

	// Record is told each Event that a change of the Node is worth, once the API
	// server has taken the change. It must not block.
	Record func(kind, reason, message string)

	// Augment, where it is set, returns conditions of our own, and nothing else of
	// the Node is written: no Node is created, and no setter runs.
	Augment func() []pressure.Finding

	// Seen is called with each version of the Node that becomes known. It must not
	// block.
	Seen func(*v1.Node)
	// ReadOnly has the Node followed, and nothing written.
	ReadOnly bool

	// Register makes the Updater create the Node if there is none. One that is deleted
	// after that stays deleted.
	Register     bool
	Registration Registration
	Addresses    Addresses
	Resources    Resources
	// KubeletVersion and Port are shown as the kubelet's.
	KubeletVersion string
	Port           int32
	// Setters run after the built-in ones, in order.
	Setters []Setter

	// UpdateFrequency is the time between two passes that nothing asked for;
	// ReportFrequency is the time after which an unchanged status is posted; with
	// Augment, 0 is never.
	UpdateFrequency, ReportFrequency time.Duration

	// Logger is silent and Registerer is not used if nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

func (c *Config) validate() error {
	switch {
	case c.NodeName == "":
		return errors.New("node name is empty")
	case c.Nodes == nil || c.Facts == nil:
		return errors.New("nodes and facts must be given")
	case c.UpdateFrequency <= 0:
		return fmt.Errorf("update frequency %s is not positive", c.UpdateFrequency)
	case c.ReportFrequency < 0, c.ReportFrequency == 0 && c.Augment == nil && !c.ReadOnly:
		return fmt.Errorf("report frequency %s is not positive", c.ReportFrequency)
	case c.Timeout <= 0:
		return fmt.Errorf("timeout %s is not positive", c.Timeout)
	}
	return nil
}

// withDefaults fills in what may be left out, and bounds the calls to the API.
func (c Config) withDefaults() Config {
	c.Nodes = boundedNodes{c.Nodes, c.Timeout}
	c.Addresses = c.Addresses.withMachine() // once: what hangs is asked once
	c.Addresses.last = &choice{}
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
	return c
}

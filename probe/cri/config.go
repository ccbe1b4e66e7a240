package cri

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/internal/once"
)

// The intervals and bounds that a Config has where it is zero.
const (
	defaultInterval      = 10 * time.Second
	defaultImageInterval = time.Minute
	defaultTimeout       = 10 * time.Second
)

// Config is which runtime to call, and how often.
type Config struct {
	// Endpoint is the runtime's socket, in any form that SocketPath takes. "" means
	// that the node has no runtime.
	Endpoint string
	// ImageEndpoint is where images are asked for; "" is Endpoint.
	ImageEndpoint string
	// Interval is the time between two calls of Status; 0 means 10 s.
	Interval time.Duration
	// ImageInterval is the time between two calls of ListImages and of
	// ImageFsInfo; 0 means 1 min.
	ImageInterval time.Duration
	// Timeout is how long a call may take; 0 means 10 s. It should be well below
	// the 30 s after which Snapshot.Unready takes a silent runtime for down.
	Timeout time.Duration

	// Alive is called by Run with the time within which it will be called again, unless
	// Run is stuck; 0 stands for however long. A runtime that is away does not matter.
	// Optional.
	Alive func(within time.Duration)
	// Logger gets one line when a call fails, and one when it works again; nil
	// for none.
	Logger *slog.Logger
	// Registerer registers the metrics; nil for none. Without an Endpoint there are
	// none.
	Registerer prometheus.Registerer
}

// validate returns an error that starts with the name of the wrong field.
func (c *Config) validate() error {
	for _, e := range []struct{ name, value string }{{"Endpoint", c.Endpoint}, {"ImageEndpoint", c.ImageEndpoint}} {
		if e.value == "" {
			continue
		}
		if _, err := SocketPath(e.value); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"Interval", c.Interval}, {"ImageInterval", c.ImageInterval}, {"Timeout", c.Timeout}} {
		if d.value < 0 {
			return fmt.Errorf("%s: %s is negative", d.name, d.value)
		}
	}
	return nil
}

// withDefaults fills in what may be left out.
func (c Config) withDefaults() Config {
	c.Interval = cmp.Or(c.Interval, defaultInterval)
	c.ImageInterval = cmp.Or(c.ImageInterval, defaultImageInterval)
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	if c.Alive == nil {
		c.Alive = func(time.Duration) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Logger = once.Logger(c.Logger)
	return c
}

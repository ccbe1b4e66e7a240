// Package staged registers metrics all at once.
package staged

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Registry collects the metrics of an Agent's parts, so that all of them are
// registered or none. It implements prometheus.Registerer, of which the parts see no
// more than that.
type Registry struct {
	collected  []prometheus.Collector
	registered int // of those
	target     prometheus.Registerer
}

// Register implements prometheus.Registerer.
func (r *Registry) Register(c prometheus.Collector) error {
	r.collected = append(r.collected, c)
	return nil
}

// MustRegister implements prometheus.Registerer.
func (r *Registry) MustRegister(cs ...prometheus.Collector) {
	r.collected = append(r.collected, cs...)
}

// Unregister implements prometheus.Registerer. No part of an Agent calls it.
func (r *Registry) Unregister(prometheus.Collector) bool { return false }

// Commit registers everything with target; nil is nowhere.
func (r *Registry) Commit(target prometheus.Registerer) error {
	if target == nil {
		return nil
	}
	r.target = target
	for _, c := range r.collected {
		if err := target.Register(c); err != nil {
			r.Release()
			return fmt.Errorf("register metrics: %w; a registry takes the metrics of one agent at a time", err)
		}
		r.registered++
	}
	return nil
}

// Release takes back what Commit registered.
func (r *Registry) Release() {
	for _, c := range r.collected[:r.registered] {
		r.target.Unregister(c)
	}
	r.registered = 0
}

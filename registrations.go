package nodeprobe

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// registrations collects the metrics of an Agent's parts, so that all of them are
// registered or none. It implements prometheus.Registerer, of which the parts see no
// more than that.
type registrations struct {
	collected  []prometheus.Collector
	registered int // of those
	target     prometheus.Registerer
}

// Register implements prometheus.Registerer.
func (r *registrations) Register(c prometheus.Collector) error {
	r.collected = append(r.collected, c)
	return nil
}

// MustRegister implements prometheus.Registerer.
func (r *registrations) MustRegister(cs ...prometheus.Collector) {
	r.collected = append(r.collected, cs...)
}

// Unregister implements prometheus.Registerer. No part of an Agent calls it.
func (r *registrations) Unregister(prometheus.Collector) bool { return false }

// commit registers everything with target; nil is nowhere.
func (r *registrations) commit(target prometheus.Registerer) error {
	if target == nil {
		return nil
	}
	r.target = target
	for _, c := range r.collected {
		if err := target.Register(c); err != nil {
			r.release()
			return fmt.Errorf("register metrics: %w; a registry takes the metrics of one agent at a time", err)
		}
		r.registered++
	}
	return nil
}

// release takes back what commit registered.
func (r *registrations) release() {
	for _, c := range r.collected[:r.registered] {
		r.target.Unregister(c)
	}
	r.registered = 0
}

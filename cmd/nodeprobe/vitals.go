package main

import (
	"cmp"
	"fmt"
	"strings"
)

// alive says whether everything that this process is for goes on, be there an API
// server or not. Whoever asks ends the process if it does not.
func (d *daemon) alive() error {
	if err := d.sampler.Healthy(); err != nil {
		return err
	}
	if d.writer == nil {
		return nil
	}
	return d.writer.alive()
}

func (o *owner) alive() error {
	return cmp.Or(o.pulses[0].alive(), o.pulses[1].alive())
}

func (a *augmenter) alive() error { return a.pulse.alive() }

// superviseBy has a supervisor told how this daemon is.
func (d *daemon) superviseBy(s *supervisor, mode, node string) {
	if s == nil {
		return
	}
	s.alive = d.alive
	s.status = func() string { return d.statusLine(mode, node) }
	d.supervisor = s
}

// statusLine is what "systemctl status" shows.
func (d *daemon) statusLine(mode, node string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "mode %s, node %s:", mode, node)
	for _, v := range d.monitor.facts().Verdicts {
		fmt.Fprintf(&b, " %s=%s", v.Condition, v.Status)
	}
	for _, c := range d.readyChecks() {
		if err := c.run(); err != nil {
			fmt.Fprintf(&b, "; %s: %v", c.name, err)
		}
	}
	if d.reloader.refused() {
		b.WriteString("; the configuration is refused, see the log")
	}
	return oneLine(b.String(), mostRunes)
}

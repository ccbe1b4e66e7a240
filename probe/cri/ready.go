package cri

import (
	"errors"
	"fmt"
	"time"
)

// downAfter is how long the kubelet takes a runtime for ready that does not report
// it again.
const downAfter = 30 * time.Second

// Unready returns why a node with this runtime is not ready, in the kubelet's words
// and order; nil if it is ready, or has no runtime. Several reasons are joined with
// errors.Join.
func (s *Snapshot) Unready() error {
	if s.Endpoint == "" {
		return nil
	}
	var errs []error
	switch {
	case s.LastReady.IsZero():
		errs = append(errs, errors.New("container runtime status check may not have completed yet"))
	case s.Silent >= downAfter:
		errs = append(errs, errors.New("container runtime is down"))
	}
	if s.Reads[CallStatus].Time.IsZero() {
		return errors.Join(append(errs, errors.New("network state unknown"))...)
	}
	if !s.Status.Runtime.Status {
		errs = append(errs, fmt.Errorf("container runtime not ready: %s", s.Status.Runtime))
	}
	if !s.Status.Network.Status {
		errs = append(errs, fmt.Errorf("container runtime network not ready: %s", s.Status.Network))
	}
	return errors.Join(errs...)
}

// String returns the condition as the kubelet writes it.
func (c Condition) String() string {
	if c.Type == "" {
		return "<nil>"
	}
	return fmt.Sprintf("%s=%t reason:%s message:%s", c.Type, c.Status, c.Reason, c.Message)
}

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
)

// settle is for a process that was started or stopped to be quiet again.
const settle = 150 * time.Millisecond

// orders are the orders of the looks in a round, in which on is 0. What comes
// first may run on a machine that is warmer or busier.
var orders = [...][3]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {2, 0, 1}, {1, 2, 0}, {0, 2, 1}}

// measureRounds returns the rounds of each loop by its name.
func measureRounds(ctx context.Context, subject agent.Spec, loops []*loop, rounds int, length time.Duration) (map[string][]round, error) {
	all := make(map[string][]round, len(loops))
	for i := range rounds {
		var took [3]map[string]float64
		for _, which := range orders[i%len(orders)] {
			var err error
			if which == 0 {
				took[which], err = lookOn(ctx, subject, loops, length)
			} else {
				took[which], err = look(ctx, loops, length)
			}
			if err != nil {
				return nil, err
			}
		}
		for _, l := range loops {
			all[l.name] = append(all[l.name], round{on: took[0][l.name], off: took[1][l.name], offAgain: took[2][l.name]})
		}
	}
	return all, nil
}

// lookOn is look while nodeprobe runs. It answers when its programs are attached
// and its limits known to the kernel.
func lookOn(ctx context.Context, subject agent.Spec, loops []*loop, length time.Duration) (map[string]float64, error) {
	a, err := agent.Start(ctx, subject)
	if err != nil {
		return nil, err
	}
	defer a.Stop()
	return look(ctx, loops, length)
}

// look runs each loop once.
func look(ctx context.Context, loops []*loop, length time.Duration) (map[string]float64, error) {
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(settle):
	}
	took := make(map[string]float64, len(loops))
	for _, l := range loops {
		ns, err := l.run(length)
		if err != nil {
			return nil, fmt.Errorf("run loop %s: %w", l.name, err)
		}
		took[l.name] = ns
	}
	return took, nil
}

package main

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/web"
)

// A rehearsal serves requests, asks for them over the network, and reads the
// configuration without putting it in force. What fails costs the rest nothing, and is in
// the log at level debug alone.
func TestRehearse(t *testing.T) {
	for _, test := range []struct{ name, memory, fails string }{
		{"a new configuration", "7Gi", ""}, // its condition would be True
		{"a wrong configuration", "much", "step=reload"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := runReloading(t)
			server, err := web.New(t.Context(), web.Config{Listen: "127.0.0.1:0"}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- server.Run(ctx, r.routes()) }()
			defer func() { stop(); <-done }()
			r.level.Set(slog.LevelDebug)
			r.write(reloadConfig(test.memory, ""))
			lines := r.log.String()

			r.rehearse(t.Context(), server)

			steps := 0
			for line := range strings.Lines(strings.TrimPrefix(r.log.String(), lines)) {
				if strings.Contains(line, "no notifications from source") { // its notifier has just started, or is woken
					continue
				}
				failed := test.fails != "" && strings.Contains(line, test.fails)
				if !strings.Contains(line, "level=DEBUG msg=rehearsed") || strings.Contains(line, "err=<nil>") == failed {
					t.Errorf("it logs %s", line)
				}
				steps++
			}
			if steps < 6 {
				t.Errorf("%d steps", steps)
			}
			if r.memory() != 0 || r.metric("nodeprobe_config_last_reload_successful") != 1 {
				t.Error("it is in force, or refused")
			}
		})
	}
}

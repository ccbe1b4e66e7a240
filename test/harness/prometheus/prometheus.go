// Package prometheus runs a real Prometheus that scrapes nodeprobe, and asks it
// what the alerts and the dashboard in the product's deploy directory would ask.
package prometheus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

const (
	readyTimeout = 2 * time.Minute
	stopGrace    = 20 * time.Second
)

// Server is a running Prometheus.
type Server struct{ url string }

// StartForTest runs the prometheus in PATH until the test ends, and returns when it
// answers. Its data and its configuration go to dir. If the test has failed, the last
// lines of the log are shown.
func StartForTest(t testing.TB, dir string, config any) *Server {
	t.Helper()
	need.Command(t, "prometheus", "prometheus")
	file, log := must.Get(WriteConfig(dir, config))(t), filepath.Join(dir, "prometheus.log")
	address := "127.0.0.1:" + strconv.Itoa(must.Get(process.FreePorts(1))(t)[0])
	p := must.Get(process.Start(process.Spec{
		Path: "prometheus", LogFile: log,
		Args: []string{
			"--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"),
			"--web.listen-address=" + address, "--log.level=warn",
		},
	}))(t)
	t.Cleanup(func() {
		p.Stop(stopGrace)
		if t.Failed() {
			t.Logf("Prometheus' last lines:\n%s", process.LogTail(log, 20))
		}
	})
	s := &Server{url: "http://" + address}
	ctx, cancel := context.WithTimeout(t.Context(), readyTimeout)
	defer cancel()
	must.OK(t, p.WaitReady(ctx, func(ctx context.Context) error { return process.GetOK(ctx, s.url+"/-/ready") }))
	return s
}

// Query returns how many series an expression comes to now.
func (s *Server) Query(ctx context.Context, expr string) (series int, err error) {
	var data struct {
		ResultType string
		Result     []json.RawMessage
	}
	if err := s.get(ctx, "/api/v1/query?query="+url.QueryEscape(expr), &data); err != nil {
		return 0, fmt.Errorf("query %s: %w", expr, err)
	}
	if data.ResultType != "vector" {
		return 0, fmt.Errorf("query %s: the result is a %s", expr, data.ResultType)
	}
	return len(data.Result), nil
}

// Rule is an alert, and how it was evaluated last.
type Rule struct {
	Name, Query, Health, LastError string
}

// Rules returns all alerts.
func (s *Server) Rules(ctx context.Context) ([]Rule, error) {
	var data struct{ Groups []struct{ Rules []Rule } }
	if err := s.get(ctx, "/api/v1/rules", &data); err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	var rules []Rule
	for _, g := range data.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules, nil
}

// Scraped returns an error that says which targets have not been scraped well.
func (s *Server) Scraped(ctx context.Context) error {
	var data struct {
		ActiveTargets []struct {
			Labels            map[string]string
			Health, LastError string
		}
	}
	if err := s.get(ctx, "/api/v1/targets", &data); err != nil {
		return fmt.Errorf("list targets: %w", err)
	}
	if len(data.ActiveTargets) == 0 {
		return errors.New("no targets")
	}
	var errs []error
	for _, t := range data.ActiveTargets {
		if t.Health != "up" {
			errs = append(errs, fmt.Errorf("%s is %s: %s", t.Labels["instance"], t.Health, t.LastError))
		}
	}
	return errors.Join(errs...)
}

// get asks the API, and decodes what it answers.
func (s *Server) get(ctx context.Context, path string, data any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %w", resp.Status, err)
	}
	if answer.Status != "success" {
		return errors.New(answer.Error)
	}
	return nil
}

// WriteConfig writes a configuration; JSON is YAML too.
func WriteConfig(dir string, config any) (string, error) {
	data, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode configuration: %w", err)
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return "", fmt.Errorf("write configuration: %w", err)
	}
	return file, nil
}

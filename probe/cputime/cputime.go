// Package cputime exports what the node's CPUs have spent their time on.
package cputime

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// hertz is USER_HZ, which is 100 on every architecture that Go runs on.
const hertz = 100

// modes are the columns of the first line of /proc/stat. Those of guests follow; they are
// part of user and nice already.
var modes = [...]string{"user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"}

var descSeconds = prometheus.NewDesc("nodeprobe_cpu_seconds_total",
	"Time of all CPUs by what they spent it on.", []string{"mode"}, nil)

// Collector reads /proc/stat at each scrape: to make it, the kernel adds up the interrupts
// of all CPUs, which is too much for every sample. It implements prometheus.Collector.
type Collector struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex // guards the rest
	file    *os.File   // nil while not open
	line    [512]byte
	last    [len(modes)]int64
	failing bool
	closed  bool
}

// New returns a Collector of the node whose /proc is at procfs. It opens nothing yet.
// Close closes what a scrape opens.
func New(procfs string, log *slog.Logger) *Collector {
	return &Collector{path: filepath.Join(procfs, "stat"), log: log}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) { ch <- descSeconds }

// Collect implements prometheus.Collector. What cannot be read is absent, and logged once.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ticks, err := c.read()
	if err != nil {
		return
	}
	for i, n := range ticks {
		ch <- prometheus.MustNewConstMetric(descSeconds, prometheus.CounterValue, float64(n)/hertz, modes[i])
	}
}

// Close closes the file. A scrape that is still under way finds nothing.
func (c *Collector) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed, c.failing = true, true // which is no news
	c.closeFile()
}

func (c *Collector) closeFile() {
	if c.file != nil {
		c.file.Close()
		c.file = nil
	}
}

// read returns the ticks of each mode.
func (c *Collector) read() (ticks [len(modes)]int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	line, err := c.readLine()
	if err == nil {
		if ticks, err = parse(line); err != nil {
			err = fmt.Errorf("read %s: %w", c.path, err)
		}
	}
	if err != nil && !c.failing {
		c.log.Warn("CPU time is not exported", "err", err)
	}
	if c.failing = err != nil; c.failing {
		c.closeFile()
		return ticks, err
	}
	for i := range ticks {
		// Idle and iowait run backwards at times, when the kernel corrects what it
		// had estimated; a counter that does so looks like one that began anew.
		c.last[i] = max(c.last[i], ticks[i])
	}
	return c.last, nil
}

// readLine returns the beginning of the file. The rest of it, in which every interrupt has a
// number, is not copied.
func (c *Collector) readLine() ([]byte, error) {
	if c.closed {
		return nil, os.ErrClosed
	}
	if c.file == nil {
		f, err := os.Open(c.path)
		if err != nil {
			return nil, err
		}
		c.file = f
	}
	n, err := c.file.ReadAt(c.line[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return c.line[:n], nil
}

var errFormat = errors.New("the first line is not that of all CPUs")

// parse reads a line such as "cpu  1018 20 503 99321 204 0 11 0 0 0".
func parse(text []byte) (ticks [len(modes)]int64, err error) {
	line, _, whole := bytes.Cut(text, []byte("\n"))
	fields := bytes.Fields(line)
	if !whole || len(fields) <= len(modes) || string(fields[0]) != "cpu" {
		return ticks, errFormat
	}
	for i := range ticks {
		if ticks[i], err = strconv.ParseInt(string(fields[i+1]), 10, 64); err != nil {
			return ticks, errFormat
		}
	}
	return ticks, nil
}

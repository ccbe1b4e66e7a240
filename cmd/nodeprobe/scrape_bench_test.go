package main

import (
	"log/slog"
	"net/http/httptest"
	"testing"
)

// BenchmarkScrape is what a scrape of /metrics costs, all of the daemon's
// metrics included.
func BenchmarkScrape(b *testing.B) {
	cfg, p, err := loadConfig("", kubeletFiles{})
	if err != nil {
		b.Fatal(err)
	}
	d, err := newDaemon(&cfg, p, paths{"/proc", "/sys", "/"}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer d.close()
	d.monitor.observe(d.sampler.Sample())
	handler := d.serves().Handler()
	b.ReportAllocs()
	for b.Loop() {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/metrics", nil))
	}
}

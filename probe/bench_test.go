package probe

import (
	"testing"
	"time"
)

func realConfig() Config {
	return Config{Procfs: "/proc", Sysfs: "/sys", Rootfs: "/", RootDirectory: "/var/lib/kubelet", Interval: 10 * time.Second}
}

// newRealSampler samples the machine that the test runs on.
func newRealSampler(t testing.TB) *Sampler {
	t.Helper()
	s, err := New(realConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func BenchmarkSample(b *testing.B) {
	s := newRealSampler(b)
	s.Sample()
	b.ReportAllocs()
	for b.Loop() {
		s.Sample()
	}
}
func TestX(t *testing.T) {
	s := newRealSampler(t)
	t.Logf("%+v", s.Sample())
}

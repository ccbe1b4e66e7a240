package web

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/exporter-toolkit/web"
	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/internal/once"
	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// readWait is how long the files are waited for; they may be on a disk that hangs, and a
// request waits meanwhile.
var readWait = deadline.Wait{First: 2 * time.Second, Later: 100 * time.Millisecond}

// file is a web configuration file. The toolkit reads its file for each handshake and each
// request, and fails them all while it is invalid or half-written. So it gets a copy in
// memory, with the certificates inlined, which is replaced by valid content only: with a
// mistake, or a disk that hangs, the last good configuration stays in force, and a metric
// and the log report it.
type file struct {
	path string
	log  *slog.Logger
	good prometheus.Gauge
	fd   int // of the copy
	// alone means that no other address serves health endpoints.
	alone bool

	read    *config // the latest that is right; owned by the call of reading
	reading *deadline.Latest[*config]

	mu     sync.Mutex // guards the rest
	config *config    // in force
}

// openFile reads the file, which must be right to start with.
func openFile(path string, alone bool, log *slog.Logger) (*file, error) {
	config, err := readConfig(path)
	if err != nil {
		return nil, err
	}
	fd, err := inMemory(config.text)
	if err != nil {
		return nil, fmt.Errorf("copy web configuration: %w", err)
	}
	f := &file{
		path: path, log: once.Logger(log), config: config, read: config, fd: fd, alone: alone,
		good: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nodeprobe_web_config_last_reload_successful",
			Help: "Whether the web configuration in force is that of the files; 0: they are wrong, and the last good one stays.",
		}),
	}
	f.reading = deadline.NewLatest("read web configuration "+path, 0, readWait, f.reread)
	f.good.Set(1)
	f.warnProbes()
	return f, nil
}

// warnProbes logs that the configuration in force fails a kubelet's probes.
func (f *file) warnProbes() {
	if f.alone && f.config.restricted() {
		f.log.Warn("/livez and /readyz require a user or a client certificate too; set webHealthListenAddress for probes that have neither", "file", f.path)
	}
}

func (f *file) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fd >= 0 {
		_ = unix.Close(f.fd)
		f.fd = -1
	}
}

// copied is the path of the copy. It stays the same when the content changes.
func (f *file) copied() string { return memoryPath(f.fd) }

// reread reads the files if they have changed.
func (f *file) reread() (*config, error) {
	if !f.read.stale() {
		return f.read, nil
	}
	c, err := readConfig(f.path)
	if err == nil {
		f.read = c
	}
	return c, err
}

// current returns the configuration in force, which is that of the files if they are right
// and can be read in time.
func (f *file) current() *config {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, at, err := f.reading.Get()
	if !at.IsZero() && !now.same(f.config) {
		err = cmp.Or(f.replace(now), err)
	}
	f.reloaded(err)
	return f.config
}

// same reports whether two configurations were read from the same files.
func (c *config) same(other *config) bool {
	return c == other || maps.EqualFunc(c.inputs, other.inputs, bytes.Equal)
}

// replace puts another configuration in force.
func (f *file) replace(next *config) error {
	if field := f.config.restartFor(next); field != "" {
		return fmt.Errorf("%s: changing %s needs a restart", f.path, field)
	}
	fd, err := inMemory(next.text)
	if err != nil {
		return fmt.Errorf("copy web configuration: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Dup3(fd, f.fd, unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("replace copy of web configuration: %w", err)
	}
	was := f.config
	f.config = next
	f.log.Info("web configuration reloaded", "file", f.path)
	if !was.restricted() {
		f.warnProbes()
	}
	return nil
}

// reloaded logs a failure once, and its end.
func (f *file) reloaded(err error) {
	const key = "web configuration"
	if err != nil {
		f.good.Set(0)
		f.log.Error("cannot reload web configuration; keeping the last good one", once.Failure, key, "err", err)
		return
	}
	f.good.Set(1)
	f.log.Info("web configuration of the file is in force again", once.Recovery, key, "file", f.path)
}

// inMemory returns the descriptor of a file in memory.
func inMemory(text []byte) (fd int, err error) {
	const name = "web-config"
	fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	}
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	if err := os.WriteFile(memoryPath(fd), text, 0); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func memoryPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// validate runs the toolkit's own checks.
func validate(text []byte) error {
	fd, err := inMemory(text)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return web.Validate(memoryPath(fd))
}

// stale reports whether a file differs from what was read of it. They are few and small,
// and requests are rare: content does not lie, as times may.
func (c *config) stale() bool {
	for path, was := range c.inputs {
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, was) {
			return true
		}
	}
	return false
}

package cri

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The intervals and bounds that a Config has where it is zero.
const (
	defaultInterval      = 10 * time.Second
	defaultImageInterval = time.Minute
	defaultTimeout       = 10 * time.Second
)

const (
	// versionInterval is how often the version is asked for while the runtime can
	// be reached each time.
	versionInterval = time.Minute
	// retryInterval is the least time between two attempts at a call other than
	// Status that the runtime answers with an error, or not at all. The next
	// Status must not wait for it.
	retryInterval = 30 * time.Second
	// eagerPause is the time between two calls of Status while the runtime, or its
	// network, is not ready and was so less than eagerFor ago, or never was: it is
	// about to be, and the node with it. The kubelet does the same.
	eagerPause = 100 * time.Millisecond
	eagerFor   = 2 * time.Minute
	// relogInterval is how often a call that keeps failing may be logged again
	// because of another error.
	relogInterval = time.Minute
)

// Config says which runtime to ask, and how often.
type Config struct {
	// Endpoint is the runtime's socket: unix:// and an absolute path, or such a
	// path alone. "" means that the node has no runtime.
	Endpoint string
	// ImageEndpoint is where images are asked for; "" is Endpoint.
	ImageEndpoint string
	// Interval is the time between two calls of Status; 0 means 10 s.
	Interval time.Duration
	// ImageInterval is the time between two calls of ListImages and of
	// ImageFsInfo; 0 means 1 min.
	ImageInterval time.Duration
	// Timeout is how long a call may take; 0 means 10 s. It should be well below
	// the 30 s after which Snapshot.Unready takes a silent runtime for down.
	Timeout time.Duration

	// Logger gets one line when a call fails, and one when it works again; nil
	// for none.
	Logger *slog.Logger
	// Registerer gets the metrics, which can be registered once; nil for none.
	// Without an Endpoint there are none.
	Registerer prometheus.Registerer
}

func (c *Config) validate() error {
	for _, e := range []struct{ name, value string }{{"Endpoint", c.Endpoint}, {"ImageEndpoint", c.ImageEndpoint}} {
		if e.value == "" {
			continue
		}
		if _, err := SocketPath(e.value); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"Interval", c.Interval}, {"ImageInterval", c.ImageInterval}, {"Timeout", c.Timeout}} {
		if d.value < 0 {
			return fmt.Errorf("%s: %s is negative", d.name, d.value)
		}
	}
	return nil
}

// Sampler asks the runtime. One goroutine at a time may call Sample; Last is
// safe for concurrent use.
type Sampler struct {
	cfg      Config
	metrics  *metrics
	interval [NumCalls]time.Duration
	// services are who is asked, by call; all calls may have the same one.
	services [NumCalls]*service
	// call makes a call; it is ask but in tests.
	call func(ctx context.Context, c Call, request []byte) ([]byte, error)
	poke chan struct{} // there is something to tell the runtime

	// What follows belongs to the goroutine that calls Sample.
	current Snapshot
	due     [NumCalls]time.Time // zero: at once
	eager   time.Time           // until when eagerPause applies; zero before Run
	logged  [NumCalls]logged

	mu      sync.Mutex // guards the rest
	last    Snapshot
	silence silence
	podCIDR string
}

// service is a socket that answers calls.
type service struct {
	endpoint string
	client   *client
	lost     error // in the present Sample
}

// logged is what was last said about a call.
type logged struct {
	text string // "" while it is answered
	at   time.Time
}

// New makes a Sampler. It connects to nothing and starts no goroutine. There is
// nothing to close: a Sample closes what it opens.
func New(cfg Config) (*Sampler, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.Interval = cmp.Or(cfg.Interval, defaultInterval)
	cfg.ImageInterval = cmp.Or(cfg.ImageInterval, defaultImageInterval)
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Sampler{
		cfg: cfg,
		interval: [NumCalls]time.Duration{
			CallVersion: versionInterval, CallImageFsInfo: cfg.ImageInterval, CallListImages: cfg.ImageInterval,
		},
		poke:    make(chan struct{}, 1),
		current: Snapshot{Endpoint: cfg.Endpoint},
		last:    Snapshot{Endpoint: cfg.Endpoint},
		silence: silence{most: max(cfg.Interval, cfg.Timeout)},
	}
	if cfg.Endpoint == "" {
		return s, nil
	}
	var err error
	if s.metrics, err = newMetrics(cfg.Registerer, s.Last); err != nil {
		return nil, err
	}
	runtime := s.newService(cfg.Endpoint)
	images := runtime
	if cfg.ImageEndpoint != "" && cfg.ImageEndpoint != cfg.Endpoint {
		images = s.newService(cfg.ImageEndpoint)
	}
	for c := range Call(NumCalls) {
		if s.services[c] = runtime; c.ofImages() {
			s.services[c] = images
		}
	}
	s.call = s.ask
	return s, nil
}

// newService takes an endpoint that has been checked.
func (s *Sampler) newService(endpoint string) *service {
	path, _ := SocketPath(endpoint)
	return &service{endpoint: endpoint, client: &client{path: path, dialled: s.metrics.connects.Inc, dial: dial}}
}

func (s *Sampler) ask(ctx context.Context, c Call, request []byte) ([]byte, error) {
	return s.services[c].client.call(ctx, c, request)
}

// Sample makes the calls that are due, over one connection: Status each time,
// Version once a minute and after the runtime was away, those about images at
// ImageInterval. Each takes a timeout at most, and a runtime that cannot be
// reached, or did not answer, is asked nothing more in this Sample. It never fails
// as a whole: Snapshot.Reads says what did. The Snapshot belongs to the Sampler and
// is valid until the next Sample; copy it to keep it. A call that the end of ctx
// cuts short has not failed.
func (s *Sampler) Sample(ctx context.Context) *Snapshot {
	if s.cfg.Endpoint == "" {
		return &s.current
	}
	now := time.Now()
	for _, service := range s.services {
		service.lost = nil
		defer service.client.close()
	}
	down := s.current.Reads[CallStatus].Err != nil
	for c := range Call(NumCalls) {
		service := s.services[c]
		if now.Before(s.due[c]) || c == CallUpdateRuntimeConfig && !s.untold() {
			continue
		}
		read := &s.current.Reads[c]
		if service.lost != nil {
			read.Err = service.lost
			continue
		}
		if c == CallStatus {
			s.silent(false)
		}
		out, err := s.read(ctx, c)
		if ctx.Err() != nil {
			return &s.current
		}
		if c == CallStatus {
			s.current.Silent = s.silent(out == told && s.current.Status.Runtime.Status)
		}
		s.note(c, err, now)
		read.Err = err
		switch {
		case out == told:
			if c == CallStatus && down {
				s.askAgain()
			}
			read.Time = time.Now()
			s.due[c] = now.Add(s.interval[c])
		case out == lost:
			if !c.ofImages() || service == s.services[CallStatus] { // what comes back may be another runtime
				s.due[CallVersion], s.due[CallUpdateRuntimeConfig] = now, now
				s.current.PodCIDR = ""
			}
		case c != CallStatus:
			s.due[c] = now.Add(retryInterval)
		}
		if out == hung || out == lost {
			service.lost = err
		}
	}
	s.mu.Lock()
	s.last = s.current
	s.mu.Unlock()
	return &s.current
}

// silent returns for how long the runtime has been, given whether it has just said
// that it is ready. It is called before and after each call of Status.
func (s *Sampler) silent(ready bool) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if ready {
		s.silence.end(now)
	}
	return s.silence.look(now)
}

// askAgain makes due what was refused while Status was, too.
func (s *Sampler) askAgain() {
	for c := range s.due {
		if s.current.Reads[c].Err != nil {
			s.due[c] = time.Time{}
		}
	}
}

// outcome is how a call went.
type outcome uint8

const (
	told    outcome = iota
	refused         // the runtime answered with an error, or with nonsense
	hung            // it did not answer in time
	lost            // it cannot be reached
)

// read makes a call and stores what it tells.
func (s *Sampler) read(ctx context.Context, c Call) (outcome, error) {
	call, cancel := context.WithTimeoutCause(ctx, s.cfg.Timeout, noAnswer(s.cfg.Timeout))
	defer cancel()
	start := time.Now()
	var message []byte
	var err error
	if c == CallUpdateRuntimeConfig {
		err = s.configure(call, s.wanted())
	} else {
		message, err = s.call(call, c, nil)
	}
	took := time.Since(start)
	out := told
	switch {
	case err == nil:
		if err = s.current.decode(c, message); err != nil {
			out, err = refused, fmt.Errorf("decode answer: %w", err)
		}
	case answered(err):
		out = refused
	case call.Err() != nil:
		out = hung
	default:
		out = lost
	}
	s.metrics.calls[c].count(took, err)
	if err != nil {
		err = fmt.Errorf("call %s of %s: %w", c, s.services[c].endpoint, err)
	}
	return out, err
}

// noAnswer says that a call was given up after so much time.
type noAnswer time.Duration

func (n noAnswer) Error() string { return "no answer within " + time.Duration(n).String() }

// decode stores the answer to a call. After an error the snapshot is as before.
func (s *Snapshot) decode(c Call, message []byte) error {
	switch c {
	case CallStatus:
		status, err := decodeStatus(message)
		if err != nil {
			return err
		}
		if s.Status = status; status.Runtime.Status {
			s.LastReady = time.Now()
		}
	case CallVersion:
		version, err := decodeVersion(message)
		if err != nil {
			return err
		}
		s.Version = version
	case CallImageFsInfo:
		images, containers, err := decodeFilesystems(message)
		if err != nil {
			return err
		}
		s.ImageFilesystems, s.ContainerFilesystems = images, containers
	case CallListImages:
		images, err := decodeImages(message)
		if err != nil {
			return err
		}
		s.Images = images
	}
	return nil
}

// note logs the failure of a call once per change.
func (s *Sampler) note(c Call, err error, now time.Time) {
	said := &s.logged[c]
	if err == nil {
		if said.text != "" {
			*said = logged{}
			s.cfg.Logger.Info("container runtime answers again", "call", c.String(), "endpoint", s.services[c].endpoint)
		}
		return
	}
	text := err.Error()
	if text != said.text && (said.text == "" || now.Sub(said.at) >= relogInterval) {
		*said = logged{text: text, at: now}
		s.cfg.Logger.Warn("container runtime does not answer", "err", err)
	}
}

// Run samples at once, then at each interval, and sooner again while the runtime is
// about to be ready. It calls changed, which may be nil, after each Sample that tells
// something else than the one before, errors included; that time goes by, and how
// much of a filesystem is used, is nothing else. Run returns when ctx ends, with
// its cause.
func (s *Sampler) Run(ctx context.Context, changed func()) error {
	var timer <-chan time.Time // nil without a runtime
	for {
		select {
		case <-s.poke: // what it is about is told now
		default:
		}
		before := s.current
		snap := s.Sample(ctx)
		if changed != nil && ctx.Err() == nil && !snap.same(&before) {
			changed()
		}
		if s.cfg.Endpoint != "" {
			timer = time.After(s.pause(snap))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer:
		case <-s.poke:
			s.due[CallUpdateRuntimeConfig] = time.Time{}
		}
	}
}

// pause returns how long to wait for the next Sample.
func (s *Sampler) pause(snap *Snapshot) time.Duration {
	now := time.Now()
	ready := snap.Reads[CallStatus].Err == nil && snap.Unready() == nil
	if s.eager.IsZero() || ready {
		s.eager = now.Add(eagerFor)
	}
	if !ready && now.Before(s.eager) {
		return eagerPause
	}
	return s.cfg.Interval
}

// Last returns the latest Snapshot, which tells nothing before the first Sample,
// but for Silent, which goes on during a call.
func (s *Sampler) Last() Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.last
	last.Silent = s.silence.look(time.Now())
	return last
}

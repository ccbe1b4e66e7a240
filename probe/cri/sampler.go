package cri

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeprobe/nodeprobe/internal/once"
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
	// slack is how long a Sample and what Run calls after it may take besides the calls.
	slack = 10 * time.Second
)

// Sampler asks the runtime. One goroutine at a time may call Sample; Last is
// safe for concurrent use.
type Sampler struct {
	cfg      Config
	metrics  *metrics
	interval [NumCalls]time.Duration
	// services are the sockets to call; several calls may share one.
	services [NumCalls]*service
	// call makes a call; tests replace it.
	call   func(ctx context.Context, c Call, request, reply proto.Message) error
	wakeup chan struct{} // Configure got something else

	// What follows belongs to the goroutine that calls Sample.
	current Snapshot
	due     [NumCalls]time.Time // zero: at once
	eager   time.Time           // until when eagerPause applies; zero before Run

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

// New makes a Sampler. It connects to nothing and starts no goroutine.
func New(cfg Config) (*Sampler, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := &Sampler{
		cfg: cfg,
		interval: [NumCalls]time.Duration{
			CallVersion: versionInterval, CallImageFsInfo: cfg.ImageInterval, CallListImages: cfg.ImageInterval,
		},
		wakeup:  make(chan struct{}, 1),
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
	runtime := s.newService(cfg.Endpoint, s.askAnew)
	images := runtime
	if cfg.ImageEndpoint != "" && cfg.ImageEndpoint != cfg.Endpoint {
		images = s.newService(cfg.ImageEndpoint, func() {})
	}
	for c := range Call(NumCalls) {
		if s.services[c] = runtime; c.ofImages() {
			s.services[c] = images
		}
	}
	s.call = func(ctx context.Context, c Call, request, reply proto.Message) error {
		return s.services[c].client.call(ctx, c, request, reply)
	}
	return s, nil
}

// newService takes an endpoint that has been checked.
func (s *Sampler) newService(endpoint string, connected func()) *service {
	path, _ := SocketPath(endpoint)
	return &service{endpoint: endpoint, client: newClient(path, s.metrics.connects.Inc, connected)}
}

// Close disconnects from the runtime. A later Sample connects again. Whoever calls
// Sample calls Close; Run does it itself.
func (s *Sampler) Close() {
	for _, service := range s.services {
		if service != nil {
			service.client.close()
		}
	}
}

// Sample makes the calls that are due: Status each time, Version once a minute and
// after the runtime was away, those about images at ImageInterval. Each call takes
// a timeout at most, and a runtime that cannot be reached, or did not answer in
// time, gets no further call in this Sample. The connection stays open for the next
// Sample, or until Close. Sample never fails as a whole: Snapshot.Reads reports
// which calls did. The Snapshot belongs to the Sampler and is valid until the next
// Sample; copy it to keep it. A call that the end of ctx cuts short has not failed.
func (s *Sampler) Sample(ctx context.Context) *Snapshot {
	if s.cfg.Endpoint == "" {
		return &s.current
	}
	now := time.Now()
	for _, service := range s.services {
		service.lost = nil
	}
	down := s.current.Reads[CallStatus].Err != nil
	for c := range Call(NumCalls) {
		service := s.services[c]
		if now.Before(s.due[c]) || c == CallUpdateRuntimeConfig && !s.unconfigured() {
			continue
		}
		read := &s.current.Reads[c]
		if service.lost != nil {
			read.Err = service.lost
			continue
		}
		if c == CallStatus {
			s.noteSilence(false)
		}
		out, err := s.read(ctx, c)
		if ctx.Err() != nil {
			return &s.current
		}
		if c == CallStatus {
			s.current.Silent = s.noteSilence(out == replied && s.current.Status.Runtime.Status)
		}
		s.note(c, err)
		read.Err = err
		switch {
		case out == replied:
			if c == CallStatus && down {
				s.askAgain()
			}
			read.Time = time.Now()
			s.due[c] = now.Add(s.interval[c])
		case out == lost:
			if service == s.services[CallStatus] {
				s.askAnew()
			}
		case c != CallStatus:
			s.due[c] = now.Add(retryInterval)
		}
		if out == hung || out == lost {
			service.client.close()
			service.lost = err
		}
	}
	s.mu.Lock()
	s.last = s.current
	s.mu.Unlock()
	return &s.current
}

// noteSilence returns how long the runtime has been silent, given whether it has
// just reported that it is ready. It is called before and after each call of Status.
func (s *Sampler) noteSilence(ready bool) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if ready {
		s.silence.end(now)
	}
	return s.silence.look(now)
}

// askAnew makes the calls due whose replies are those of one process: what is behind a
// new connection may be another runtime.
func (s *Sampler) askAnew() {
	s.due[CallVersion], s.due[CallUpdateRuntimeConfig] = time.Time{}, time.Time{}
	s.current.PodCIDR = ""
}

// askAgain makes the calls due that failed together with Status.
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
	replied outcome = iota
	refused         // the runtime returned an error, or nonsense
	hung            // it did not answer in time
	lost            // it cannot be reached
)

// read makes a call and stores the reply.
func (s *Sampler) read(ctx context.Context, c Call) (outcome, error) {
	// Without a deadline for grpc to pass on: a runtime that ended the call itself
	// in time would not seem to hang.
	call, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timeout := time.AfterFunc(s.cfg.Timeout, func() { cancel(noAnswer(s.cfg.Timeout)) })
	defer timeout.Stop()
	start := time.Now()
	err := s.fetch(call, c)
	took := time.Since(start)
	out := replied
	switch {
	case err == nil:
	case answered(err), errors.Is(err, errMissing):
		out = refused
	default:
		out = lost
	}
	if err != nil && call.Err() != nil {
		out, err = hung, context.Cause(call)
	}
	s.metrics.calls[c].count(took, err)
	if err != nil {
		err = fmt.Errorf("call %s of %s: %w", c, s.services[c].endpoint, err)
	}
	return out, err
}

// noAnswer is the error of a call that was given up after so much time.
type noAnswer time.Duration

func (n noAnswer) Error() string { return "no answer within " + time.Duration(n).String() }

// fetch makes a call and stores the reply. After an error the snapshot is as
// before.
func (s *Sampler) fetch(ctx context.Context, c Call) error {
	switch c {
	case CallUpdateRuntimeConfig:
		return s.configure(ctx)
	case CallStatus:
		var reply runtimeapi.StatusResponse
		if err := s.call(ctx, c, &runtimeapi.StatusRequest{}, &reply); err != nil {
			return err
		}
		status, err := convertStatus(&reply)
		if err != nil {
			return err
		}
		if s.current.Status = status; status.Runtime.Status {
			s.current.LastReady = time.Now()
		}
	case CallVersion:
		var reply runtimeapi.VersionResponse
		if err := s.call(ctx, c, &runtimeapi.VersionRequest{}, &reply); err != nil {
			return err
		}
		s.current.Version = convertVersion(&reply)
	case CallImageFsInfo:
		var reply runtimeapi.ImageFsInfoResponse
		if err := s.call(ctx, c, &runtimeapi.ImageFsInfoRequest{}, &reply); err != nil {
			return err
		}
		s.current.ImageFilesystems = convertFilesystems(reply.GetImageFilesystems())
		s.current.ContainerFilesystems = convertFilesystems(reply.GetContainerFilesystems())
	case CallListImages:
		var reply runtimeapi.ListImagesResponse
		if err := s.call(ctx, c, &runtimeapi.ListImagesRequest{}, &reply); err != nil {
			return err
		}
		s.current.Images = convertImages(&reply)
	}
	return nil
}

// note logs the failure of a call once per change.
func (s *Sampler) note(c Call, err error) {
	key := "container runtime " + c.String()
	if err != nil {
		s.cfg.Logger.Warn("container runtime does not answer", once.Varying, key, "err", err)
		return
	}
	s.cfg.Logger.Info("container runtime answers again", once.Recovery, key, "call", c.String(), "endpoint", s.services[c].endpoint)
}

// Run samples at once, then at each interval, and sooner again while the runtime is
// about to be ready. It calls changed, which may be nil, after each Sample that
// differs from the one before, errors included; times, and how much of a filesystem
// is used, make no difference. Run returns when ctx ends, with its cause.
func (s *Sampler) Run(ctx context.Context, changed func()) error {
	defer s.Close()
	var timer <-chan time.Time // nil without a runtime
	for {
		select {
		case <-s.wakeup: // this Sample sees what it is about
		default:
		}
		s.cfg.Alive(time.Duration(NumCalls)*s.cfg.Timeout + slack)
		before := s.current
		snap := s.Sample(ctx)
		if changed != nil && ctx.Err() == nil && !snap.same(&before) {
			changed()
		}
		if s.cfg.Endpoint != "" {
			timer = time.After(s.pause(snap))
		}
		s.cfg.Alive(0)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer:
		case <-s.wakeup:
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

// Last returns the latest Snapshot, which is empty before the first Sample. Silent
// grows during a call, too.
func (s *Sampler) Last() Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.last
	last.Silent = s.silence.look(time.Now())
	return last
}

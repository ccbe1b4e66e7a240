package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/web"
)

// rehearsalTimeout bounds each request of a rehearsal.
const rehearsalTimeout = 3 * time.Second

// rehearse does once everything that has to be done in a hurry, so that its code is in
// memory, and locked if memory is: see [nodeprobe.Agent.Rehearse]. Here it is scrapes and
// a reload, whose failures are of interest to nobody but who debugs. The error is the
// agent's: it may not come again.
func (d *daemon) rehearse(ctx context.Context, server *web.Server) (err error) {
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"requests", d.rehearseRequests},
		{"connection of a client", func(ctx context.Context) error { return rehearseClient(ctx, server.URL()) }},
		{"client that is gone", rehearseBrokenPipe},
		{"reload", d.reloader.rehearse},
		{"agent", d.agent.Rehearse}, // last: it collects the garbage, and its error counts
	} {
		start := time.Now()
		err = step.do(ctx)
		d.log.Debug("rehearsed", "step", step.name, "took", time.Since(start), "err", err)
	}
	return err
}

// rehearseRequests serves what the web configuration may keep a client without a
// password from.
func (d *daemon) rehearseRequests(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rehearsalTimeout)
	defer cancel()
	handler := d.routes().Handler()
	for _, want := range []struct{ path, accept, encoding string }{
		{"/metrics", "text/plain", ""},
		{"/metrics", "application/openmetrics-text;version=1.0.0", "gzip"},
		{"/livez?verbose", "", ""},
		{"/readyz?verbose", "", ""},
		{"/api/v1/status", "", ""},
		{"/api/v1/history", "", ""},
		{"/", "", ""},
	} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, want.path, nil)
		if err != nil {
			return fmt.Errorf("make request: %w", err)
		}
		r.Header.Set("Accept", want.accept)
		r.Header.Set("Accept-Encoding", want.encoding)
		handler.ServeHTTP(nowhere{http.Header{}}, r)
	}
	return nil
}

// nowhere is an http.ResponseWriter that keeps nothing.
type nowhere struct{ header http.Header }

// Header implements http.ResponseWriter.
func (w nowhere) Header() http.Header { return w.header }

// Write implements http.ResponseWriter.
func (w nowhere) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader implements http.ResponseWriter.
func (w nowhere) WriteHeader(int) {}

// rehearseClient is a client of our own server, which may ask it for a password. It is no
// http.Client, as nothing else here is one of a plain server.
func rehearseClient(ctx context.Context, address string) error {
	at, err := url.Parse(address)
	if err != nil || at.Host == "" {
		return err // nothing is served
	}
	ctx, cancel := context.WithTimeout(ctx, rehearsalTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", local(at.Host))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if at.Scheme == "https" {
		// Whoever answers gets no secret.
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}}) //nolint:gosec // see above
	}
	for _, connection := range []string{"keep-alive", "close"} {
		if _, err := fmt.Fprintf(conn, "GET /metrics HTTP/1.1\r\nHost: %s\r\nAccept-Encoding: gzip\r\nConnection: %s\r\n\r\n", at.Host, connection); err != nil {
			return fmt.Errorf("send request: %w", err)
		}
	}
	_, err = io.Copy(io.Discard, conn)
	return err
}

// rehearseBrokenPipe gets the signal that comes with it, which the Go runtime ignores.
func rehearseBrokenPipe(context.Context) error {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(ends[0])
	unix.Close(ends[1])
	if _, err := unix.Write(ends[0], []byte{0}); !errors.Is(err, unix.EPIPE) {
		return fmt.Errorf("write to a socket without another end: %w", err)
	}
	return nil
}

// local returns the address at which this machine reaches what listens on another.
func local(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsUnspecified() {
		return address
	}
	return net.JoinHostPort("localhost", port)
}

// rehearse reads the configuration, and does not put it in force.
func (r *reloader) rehearse(context.Context) error {
	again := &loader{files: r.loader.files}
	if _, err := again.look(); err != nil {
		return err
	}
	wanted, err := again.load()
	if err != nil {
		return err
	}
	_, _, _, err = r.current.Load().Merge(wanted)
	return err
}

package cri

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// socket returns the path of a socket that does not exist yet.
func socket(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "sock")
}

// listen serves a socket, one connection at a time, until the test ends.
func listen(t testing.TB, path string, serve func(net.Conn)) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serve(conn)
		}
	})
	t.Cleanup(func() { l.Close(); done.Wait() })
}

// runtime is a container runtime made of net/http's server.
type runtime struct {
	server *http.Server

	mu          sync.Mutex
	connections int
	calls       map[string]int // by path
	podCIDRs    []string       // that it was told
	answers     map[Call]http.HandlerFunc
}

// startRuntime serves the socket until the test ends, or stop.
func startRuntime(t testing.TB, path string, answers map[Call]http.HandlerFunc) *runtime {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	r := &runtime{calls: map[string]int{}, answers: answers}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	r.server = &http.Server{
		// It does not remember the headers of earlier calls.
		HTTP2:   &http.HTTP2Config{MaxDecoderHeaderTableSize: 1},
		Handler: r, Protocols: protocols, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				r.mu.Lock()
				r.connections++
				r.mu.Unlock()
			}
		},
	}
	served := make(chan struct{})
	go func() { r.server.Serve(l); close(served) }()
	t.Cleanup(func() { r.server.Close(); <-served })
	return r
}

// stop ends the server and removes its socket, as a runtime's restart does.
func (r *runtime) stop() { r.server.Close() }

func (r *runtime) counts() (connections int, calls map[string]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls = map[string]int{}
	for path, n := range r.calls {
		calls[filepath.Base(path)] = n
	}
	return r.connections, calls
}

func (r *runtime) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.calls[req.URL.Path]++
	answers := r.answers
	r.mu.Unlock()
	body := new(bytes.Buffer)
	body.ReadFrom(req.Body)
	if req.URL.Path == methods[CallUpdateRuntimeConfig] && body.Len() > prefixLen+6 {
		r.mu.Lock()
		r.podCIDRs = append(r.podCIDRs, string(body.Next(body.Len())[prefixLen+6:]))
		r.mu.Unlock()
		body.Write(make([]byte, prefixLen))
	}
	if req.Method != http.MethodPost || req.Header.Get("Content-Type") != "application/grpc" || req.Header.Get("Te") != "trailers" ||
		!bytes.Equal(body.Bytes(), make([]byte, prefixLen)) {
		http.Error(w, "not a gRPC call with an empty message", http.StatusBadRequest)
		return
	}
	for c, path := range methods {
		if path == req.URL.Path && answers[Call(c)] != nil {
			answers[Call(c)](w, req)
			return
		}
	}
	refuse(12, "unknown service "+req.URL.Path)(w, req)
}

// tell answers with a message.
func tell(message []byte) http.HandlerFunc {
	return raw(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...), "0", "")
}

// refuse answers with an error and no message.
func refuse(code int, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", strconv.Itoa(code))
		w.Header().Set("Grpc-Message", url.PathEscape(message))
	}
}

// raw answers with any body and trailers.
func raw(body []byte, status, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Write(body)
		w.(http.Flusher).Flush()
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", status)
		w.Header().Set(http.TrailerPrefix+"Grpc-Message", message)
	}
}

// What follows writes protobuf messages.

func str(number protowire.Number, s string) []byte { return msg(number, []byte(s)) }

func num(number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), v)
}

func msg(number protowire.Number, fields ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), bytes.Join(fields, nil))
}

func join(fields ...[]byte) []byte { return bytes.Join(fields, nil) }

// condition is a field of a RuntimeStatus.
func condition(name string, status bool, reason, message string) []byte {
	return msg(1, str(1, name), num(2, protowire.EncodeBool(status)), str(3, reason), str(4, message))
}

// What a healthy runtime answers.
var (
	statusMessage = join(
		msg(1, condition("RuntimeReady", true, "", ""), condition("NetworkReady", false, "NetworkPluginNotReady", "cni plugin not initialized")),
		msg(2, str(1, "config"), str(2, "{}")),
		msg(3, str(1, "runc"), msg(2, num(1, 1), num(2, 1))),
		msg(3, msg(2, num(1, 1))),
		msg(4, num(1, 1)),
	)
	readyMessage   = join(msg(1, condition("RuntimeReady", true, "", ""), condition("NetworkReady", true, "", "")))
	versionMessage = join(str(1, "0.1.0"), str(2, "containerd"), str(3, "2.1.0"), str(4, "v1"))
	imagesMessage  = join(
		msg(1, str(1, "sha256:aa"), str(2, "pause:3.10"), str(3, "pause@sha256:01"), num(4, 700)),
		msg(1, str(1, "sha256:bb"), num(4, 900), msg(5, num(1, 65535)), num(8, 1)),
		msg(1, str(1, "sha256:cc"), str(2, "a:1"), str(2, "a:2"), num(4, 700)),
	)
	filesystemsMessage = join(
		msg(1, num(1, 1e9), msg(2, str(1, "/var/lib/images")), msg(3, num(1, 4096)), msg(4)),
		msg(2, num(1, 2e9), msg(2, str(1, "/var/lib/layers"))),
	)
)

func healthy() map[Call]http.HandlerFunc {
	return map[Call]http.HandlerFunc{
		CallStatus: tell(statusMessage), CallVersion: tell(versionMessage),
		CallImageFsInfo: tell(filesystemsMessage), CallListImages: tell(imagesMessage),
		CallUpdateRuntimeConfig: tell(nil),
	}
}

// What they mean.
var (
	wantStatus = Status{
		Runtime:  Condition{Type: "RuntimeReady", Status: true},
		Network:  Condition{Type: "NetworkReady", Reason: "NetworkPluginNotReady", Message: "cni plugin not initialized"},
		Handlers: []Handler{{RecursiveReadOnlyMounts: true}, {Name: "runc", RecursiveReadOnlyMounts: true, UserNamespaces: true}},
		Features: Features{Reported: true, SupplementalGroupsPolicy: true},
	}
	wantVersion = Version{RuntimeName: "containerd", RuntimeVersion: "2.1.0", RuntimeAPIVersion: "v1"}
	wantImages  = []Image{
		{ID: "sha256:bb", Size: 900},
		{ID: "sha256:cc", Tags: []string{"a:1", "a:2"}, Size: 700},
		{ID: "sha256:aa", Tags: []string{"pause:3.10"}, Digests: []string{"pause@sha256:01"}, Size: 700},
	}
	wantImageFilesystems = []Filesystem{{
		Time: time.Unix(1, 0), Mountpoint: "/var/lib/images", Bytes: Usage{4096, true}, Inodes: Usage{0, true},
	}}
	wantContainerFilesystems = []Filesystem{{Time: time.Unix(2, 0), Mountpoint: "/var/lib/layers"}}
)

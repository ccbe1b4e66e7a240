package cri

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
)

// prefixLen is the length of what stands before each gRPC message: one byte that
// says whether it is compressed, four that hold its length.
const prefixLen = 5

// answer is what the runtime answers to one call.
type answer struct {
	begun, complete bool
	body            []byte
	status, text    string // grpc-status and grpc-message
}

// statusError is a call that the runtime has understood and answered with an
// error. The connection is fine.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string {
	text := "code " + strconv.Itoa(e.code)
	if e.code < len(codeNames) {
		text = codeNames[e.code]
	}
	if e.message != "" {
		text += ": " + e.message
	}
	if e.code == codeUnimplemented && strings.Contains(e.message, "unknown service") {
		// containerd's CRI can be turned off, and some packages do so; and old
		// runtimes speak v1alpha2.
		text += " (the runtime does not offer CRI v1)"
	}
	return text
}

// answered says whether an error is the runtime's answer.
func answered(err error) bool {
	_, ok := errors.AsType[*statusError](err)
	return ok
}

const codeUnimplemented = 12

// codeNames are gRPC's names for its status codes.
var codeNames = [...]string{
	"OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists",
	"PermissionDenied", "ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange",
	"Unimplemented", "Internal", "Unavailable", "DataLoss", "Unauthenticated",
}

// headers takes the headers that begin an answer, or the trailers that end it;
// an answer without a message has both in one.
func (a *answer) headers(f *http2.MetaHeadersFrame) error {
	if f.Truncated {
		return fmt.Errorf("headers of the answer exceed %d bytes", maxHeaders)
	}
	var contentType string
	for _, field := range f.RegularFields() {
		switch field.Name {
		case "content-type":
			contentType = field.Value
		case "grpc-status":
			a.status = field.Value
		case "grpc-message":
			a.text = field.Value
		}
	}
	if !a.begun {
		if code := f.PseudoValue("status"); code != "200" {
			return fmt.Errorf("server of another kind: HTTP status %q", code)
		}
		if !strings.HasPrefix(contentType, "application/grpc") {
			return fmt.Errorf("server of another kind: content type %q", contentType)
		}
	}
	a.begun, a.complete = true, f.StreamEnded()
	return nil
}

func (a *answer) data(b []byte, last bool) error {
	if !a.begun {
		return errors.New("answer has no headers")
	}
	a.body = append(a.body, b...)
	a.complete = last
	if len(a.body) > prefixLen+maxMessage || len(a.body) >= prefixLen && binary.BigEndian.Uint32(a.body[1:]) > maxMessage {
		return fmt.Errorf("answer exceeds %d bytes", maxMessage)
	}
	return nil
}

// message returns the message that the answer consists of.
func (a *answer) message() ([]byte, error) {
	code, err := strconv.ParseUint(a.status, 10, 31)
	if err != nil {
		return nil, fmt.Errorf("answer ends with status %q", a.status)
	}
	if code != 0 {
		return nil, &statusError{code: int(code), message: unescape(a.text)}
	}
	if len(a.body) < prefixLen {
		return nil, fmt.Errorf("read message: %w", io.ErrUnexpectedEOF)
	}
	if a.body[0] != 0 {
		return nil, errors.New("answer is compressed")
	}
	message := a.body[prefixLen:]
	if want := binary.BigEndian.Uint32(a.body[1:]); uint64(want) != uint64(len(message)) {
		return nil, fmt.Errorf("answer has %d bytes instead of %d", len(message), want)
	}
	return message, nil
}

// unescape undoes the percent-encoding of a grpc-message. One that is wrong stays
// as it is.
func unescape(text string) string {
	if plain, err := url.PathUnescape(text); err == nil {
		text = plain
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

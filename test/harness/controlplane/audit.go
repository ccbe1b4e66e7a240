package controlplane

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// auditPolicy records each request once, when it has been answered, and with
// the body of what was asked for, but not the answer's.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted, Panic]
rules:
- level: Request
`

// AuditEvent is what the API server recorded about one request: the part of
// audit.k8s.io/v1 Event that tests look at.
type AuditEvent struct {
	Verb       string
	RequestURI string
	UserAgent  string
	User       struct{ Username string }
	// ImpersonatedUser is who the user asked to be taken for, if anybody.
	ImpersonatedUser struct{ Username string }
	ObjectRef        struct{ Resource, Subresource, Namespace, Name string }
	// ResponseStatus.Code is the HTTP status code.
	ResponseStatus struct{ Code int }
	// RequestObject is the object or the patch that was sent, as JSON.
	RequestObject            json.RawMessage
	RequestReceivedTimestamp time.Time
}

// ActingUser returns whose rights were asked about.
func (e *AuditEvent) ActingUser() string {
	return cmp.Or(e.ImpersonatedUser.Username, e.User.Username)
}

// Request returns what was asked for: "patch nodes/status", "get nodes".
func (e *AuditEvent) Request() string {
	return strings.TrimSuffix(e.Verb+" "+e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")
}

// Reads says whether nothing was to change.
func (e *AuditEvent) Reads() bool { return e.Verb == "get" || e.Verb == "list" || e.Verb == "watch" }

// AuditEvents returns the requests that the API server has answered so far,
// oldest first, those of its own loops included. It needs Options.AuditLog.
func (cp *ControlPlane) AuditEvents() ([]AuditEvent, error) {
	if !cp.opts.AuditLog {
		return nil, errors.New("read audit log: Options.AuditLog is not set")
	}
	data, err := os.ReadFile(cp.file("audit.log"))
	if err != nil {
		return nil, fmt.Errorf("read audit log: %w", err)
	}
	// Anything after the last newline is a line being written.
	data = data[:bytes.LastIndexByte(data, '\n')+1]
	var events []AuditEvent
	for line := range bytes.Lines(data) {
		var event AuditEvent
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("read audit log: %w", err)
		}
		events = append(events, event)
	}
	return events, nil
}

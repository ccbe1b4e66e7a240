package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// Record is one line of the agent's log.
type Record struct {
	Time       time.Time
	Level, Msg string
	// Err is the error that goes with it, if any.
	Err string
	// Line is the whole of it.
	Line string `json:"-"`
}

// Bad says that the agent complains of something.
func (r Record) Bad() bool { return r.Level == "WARN" || r.Level == "ERROR" }

// Log returns what the agent has logged so far; its logFormat must be json. A
// line of another form has only a Msg and a Line.
func (a *Agent) Log() ([]Record, error) {
	data, err := os.ReadFile(a.LogFile)
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	// Anything after the last newline is a line being written.
	data = data[:bytes.LastIndexByte(data, '\n')+1]
	var records []Record
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		r := Record{Line: line}
		if json.Unmarshal([]byte(line), &r) != nil || r.Msg == "" {
			r.Msg = line
		}
		records = append(records, r)
	}
	return records, nil
}

package main

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// tokenFile is a bearer token in a file that somebody rotates. client-go's own reads it
// within a request, for as long as the disk takes; this one fails at its deadline, and
// client-go's cache of tokens goes on with the last one.
type tokenFile struct {
	path    string
	reading deadline.Worker[tokenText]
}

type tokenText struct {
	data []byte
	err  error
}

// tokenServes is how long a token is used before the file is read again, which is what
// client-go does.
const tokenServes = 50 * time.Second

// Token implements oauth2.TokenSource.
func (f *tokenFile) Token() (*oauth2.Token, error) {
	text, err := f.reading.Do(fileTimeout, "read token file "+f.path, func() (t tokenText) {
		t.data, t.err = os.ReadFile(f.path)
		return t
	})
	if err := cmp.Or(err, text.err); err != nil {
		return nil, fmt.Errorf("read token: %w", err)
	}
	token := strings.TrimSpace(string(text.data))
	if token == "" {
		return nil, fmt.Errorf("read token: %s is empty", f.path)
	}
	return &oauth2.Token{AccessToken: token, Expiry: time.Now().Add(tokenServes)}, nil
}

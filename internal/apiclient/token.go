package apiclient

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// tokenFile is a bearer token in a file that is rotated. client-go's own reader blocks
// the request for as long as the disk takes; this one fails at its deadline, and
// client-go's cache goes on with the last token.
type tokenFile struct {
	path    string
	reading deadline.Worker[tokenText]
}

type tokenText struct {
	data []byte
	err  error
}

const (
	// tokenServes is how long a token is used before the file is read again, as by
	// client-go.
	tokenServes = 50 * time.Second
	// tokenTimeout is how long reading the file may take.
	tokenTimeout = 2 * time.Second
)

// Token implements oauth2.TokenSource.
func (f *tokenFile) Token() (*oauth2.Token, error) {
	text, err := f.reading.Do(tokenTimeout, "read token file "+f.path, func() (t tokenText) {
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

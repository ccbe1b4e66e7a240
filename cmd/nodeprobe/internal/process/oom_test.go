package process

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What is low already is left alone; it is never raised.
func TestLowerOOMScore(t *testing.T) {
	for _, test := range []struct {
		name, before string
		adj          int
		now          int
		after        string
	}{
		{"a service manager's", "0\n", -999, -999, "-999"},
		{"a pod's", "-997\n", -999, -999, "-999"},
		{"the same", "-999\n", -999, -999, "-999\n"},
		{"lower", "-1000\n", -999, -1000, "-1000\n"},
		{"above zero", "1000\n", 300, 300, "300"},
		{"never higher", "0\n", 300, 0, "0\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "oom_score_adj")
			if err := os.WriteFile(file, []byte(test.before), 0o600); err != nil {
				t.Fatal(err)
			}
			now, err := lowerOOMScore(file, test.adj)
			after, _ := os.ReadFile(file)
			if err != nil || now != test.now || string(after) != test.after {
				t.Errorf("%d, in the file %q, error %v", now, after, err)
			}
		})
	}
	for name, content := range map[string]string{"no number": "low\n", "empty": ""} {
		file := filepath.Join(t.TempDir(), "oom_score_adj")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := lowerOOMScore(file, -999); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The kernel refuses a lower one without CAP_SYS_RESOURCE, and never a higher one.
func TestLowerOOMScoreNeedsCapability(t *testing.T) {
	permitted, err := permittedCapabilities()
	if err != nil {
		t.Fatal(err)
	}
	was, err := os.ReadFile(oomScoreFile)
	if err != nil {
		t.Fatal(err)
	}
	before, err := strconv.Atoi(strings.TrimSpace(string(was)))
	if err != nil || before <= spared {
		t.Skipf("oom_score_adj is %q, error %v: nothing that is refused matters", was, err)
	}
	defer os.WriteFile(oomScoreFile, was, 0)
	var now int
	err = without(permitted, func() error {
		now, err = LowerOOMScore(-999)
		return err
	})
	if !errors.Is(err, fs.ErrPermission) || now != before {
		t.Errorf("%d, was %d, error %v", now, before, err)
	}
	if now, err = LowerOOMScore(-999); permitted&(1<<unix.CAP_SYS_RESOURCE) != 0 {
		if err != nil || now != -999 {
			t.Errorf("with the capability: %d, error %v", now, err)
		}
		return
	}
	var b strings.Builder
	SpareFromOOM(-999, slog.New(slog.NewTextHandler(&b, nil)))
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(b.String(), "level=WARN") || !strings.Contains(b.String(), "OOMScoreAdjust=") {
		t.Errorf("without the capability: %d, error %v, log %s", now, err, b.String())
	}
}

package flood

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
	"github.com/nodeprobe/nodeprobe/test/harness/wait"
)

const (
	guessers = 300
	// secretHash is that of "secret", at the cost that htpasswd -C 10 has.
	secretHash = "$2a$10$FSuVQb.OQMjcW831eti/beLvbutXvTor5.o3kI7c3C5r3pJt82xN2"
)

// While hundreds of clients guess passwords, a scraper that has one is served, be it known
// from before or new, and a kubelet's probes are.
func TestGuessers(t *testing.T) {
	dir := t.TempDir()
	web := filepath.Join(dir, "web.yml")
	must.OK(t, os.WriteFile(web, []byte("basic_auth_users:\n  prometheus: "+secretHash+"\n"), 0o600))
	ports := must.Get(process.FreePorts(2))(t)
	address, health := fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])
	p := must.Get(process.Start(process.Spec{
		Path: build.ProductForTest(t), LogFile: filepath.Join(dir, "log"),
		Args: []string{"run", "--table=off", "--web.listen-address=" + address, "--web.health-listen-address=" + health, "--web.config.file=" + web},
	}))(t)
	t.Cleanup(func() { p.Stop(10 * time.Second) })
	wait.Until(t, time.Minute, "nodeprobe is ready", func() error { return ask(t.Context(), http.DefaultClient, "http://"+health+"/readyz", "") })

	// Prometheus keeps its connection, and what is new connects for each request.
	known, anew := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{}}, &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	must.OK(t, ask(t.Context(), known, "http://"+address+"/metrics", "secret"))
	before := must.Get(footprint.Read(p.PID()))(t)

	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var guesses, wrong, refused atomic.Int64
	for i := range guessers {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: source}}
		client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: dialer.DialContext}}
		wg.Go(func() {
			defer client.CloseIdleConnections()
			for n := 0; ctx.Err() == nil; n++ {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/livez", nil)
				if err != nil {
					t.Error(err)
					return
				}
				req.SetBasicAuth("prometheus", fmt.Sprint("guess", i, n))
				guesses.Add(1)
				if resp, err := client.Do(req); err == nil { // or it made room for others
					switch resp.StatusCode {
					case http.StatusUnauthorized:
						wrong.Add(1)
					case http.StatusTooManyRequests:
						refused.Add(1)
					default:
						t.Errorf("a guess: %s", resp.Status)
					}
					resp.Body.Close()
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	time.Sleep(time.Second)
	var slowest time.Duration
	for begin := time.Now(); time.Since(begin) < 10*time.Second; time.Sleep(250 * time.Millisecond) {
		for _, try := range []struct {
			client        *http.Client
			url, password string
		}{
			{known, address + "/metrics", "secret"},
			{anew, address + "/metrics", "secret"},
			{anew, health + "/livez", ""},
			{anew, health + "/readyz", ""},
		} {
			asked := time.Now()
			must.Note(t, ask(t.Context(), try.client, "http://"+try.url, try.password))
			slowest = max(slowest, time.Since(asked))
		}
	}
	stop()
	wg.Wait()
	after := must.Get(footprint.Read(p.PID()))(t)
	t.Logf("%d guesses, %d found wrong, %d refused; slowest answer to others %s; CPU %s; RSS %d KiB, then %d",
		guesses.Load(), wrong.Load(), refused.Load(), slowest.Round(time.Millisecond), (after.CPU - before.CPU).Round(time.Millisecond), before.RSS>>10, after.RSS>>10)
	// Most connections are evicted before their guess is found wrong.
	if refused.Load() < guesses.Load()/10 || wrong.Load() > guesses.Load()/10 {
		t.Error("as many passwords were hashed as clients wanted")
	}
}

// ask requests a URL, as a user if there is a password, and wants an answer that is fine.
func ask(ctx context.Context, client *http.Client, url, password string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if password != "" {
		req.SetBasicAuth("prometheus", password)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || n == 0) {
		err = fmt.Errorf("%s: %s: %d bytes", url, resp.Status, n)
	}
	return err
}

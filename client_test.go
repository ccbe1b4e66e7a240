package nodeprobe

import (
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

// A rest.Config that cannot be used is an error of New, which names its origin.
func TestBadAPI(t *testing.T) {
	for name, test := range map[string]struct {
		api          rest.Config
		origin, want string
	}{
		"no address": {rest.Config{Host: "https://::"}, "kubeconfig /k", "use kubeconfig /k: connect to https://:::"},
		"no CA":      {rest.Config{Host: "https://127.0.0.1:1", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("garbage")}}, "", "use Config.API: connect to https://127.0.0.1:1: unable to load root certificates"},
	} {
		for _, mode := range []Mode{Own, Augment, Observe} {
			cfg, _ := treeConfig(t, testtree.New(t, nil))
			cfg.Mode, cfg.API, cfg.APIOrigin, cfg.Shadow = mode, &test.api, test.origin, true
			a, err := New(cfg)
			if a != nil || err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s, mode %s: %v, want %s", name, mode, err, test.want)
			}
		}
	}
}

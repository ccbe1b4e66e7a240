package containerd

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
)

// ImportImages gives a containerd some images for its CRI, by its socket. They are
// nothing but names, one to three of each, and a configuration. It needs the
// program ctr, which comes with containerd. The CRI lists them a little later.
func ImportImages(ctx context.Context, socket string, n int) error {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(name string, content []byte) error {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(content))})
		if err == nil {
			_, err = w.Write(content)
		}
		return err
	}
	type manifest struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	layer := make([]byte, 1024) // an empty archive
	errs := []error{add("layer.tar", layer)}
	var manifests []manifest
	for i := range n {
		config := fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","author":"%d","rootfs":{"type":"layers","diff_ids":["sha256:%x"]}}`,
			i, sha256.Sum256(layer))
		m := manifest{Config: fmt.Sprintf("%x.json", sha256.Sum256(config)), Layers: []string{"layer.tar"}}
		for tag := range i%3 + 1 {
			m.RepoTags = append(m.RepoTags, fmt.Sprintf("registry.example/team/name-%d:%d", i, tag))
		}
		errs = append(errs, add(m.Config, config))
		manifests = append(manifests, m)
	}
	index, err := json.Marshal(manifests)
	errs = append(errs, err, add("manifest.json", index), w.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("make images: %w", err)
	}
	ctr := exec.CommandContext(ctx, "ctr", "--address", socket, "--namespace", "k8s.io", "images", "import", "--no-unpack", "--digests", "-")
	ctr.Stdin = &archive
	if out, err := ctr.CombinedOutput(); err != nil {
		return fmt.Errorf("import images: %w: %s", err, out)
	}
	return nil
}

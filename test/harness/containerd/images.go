package containerd

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
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
	return ctrImport(ctx, socket, &archive, "--no-unpack", "--digests")
}

// Import gives a containerd, by its socket, the images of an archive such as
// "docker save" makes.
func Import(ctx context.Context, socket, file string) error {
	archive, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("import images: %w", err)
	}
	defer archive.Close()
	return ctrImport(ctx, socket, archive)
}

// ImportProgram gives a containerd, by its socket, an image with nothing in it but
// one static program, which it runs.
func ImportProgram(ctx context.Context, socket, image, program string) error {
	binary, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	var layer, archive bytes.Buffer
	w := tar.NewWriter(&layer)
	err = errors.Join(w.WriteHeader(&tar.Header{Name: "program", Mode: 0o755, Size: int64(len(binary))}), write(w, binary), w.Close())
	config := fmt.Appendf(nil, `{"architecture":%q,"os":"linux","config":{"Entrypoint":["/program"]},"rootfs":{"type":"layers","diff_ids":["sha256:%x"]}}`,
		runtime.GOARCH, sha256.Sum256(layer.Bytes()))
	manifest := fmt.Appendf(nil, `[{"Config":"config.json","RepoTags":[%q],"Layers":["layer.tar"]}]`, image)
	w = tar.NewWriter(&archive)
	for _, file := range []struct {
		name    string
		content []byte
	}{{"layer.tar", layer.Bytes()}, {"config.json", config}, {"manifest.json", manifest}} {
		err = errors.Join(err, w.WriteHeader(&tar.Header{Name: file.name, Mode: 0o600, Size: int64(len(file.content))}), write(w, file.content))
	}
	if err := errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	return ctrImport(ctx, socket, &archive)
}

func write(w io.Writer, content []byte) error {
	_, err := w.Write(content)
	return err
}

func ctrImport(ctx context.Context, socket string, archive io.Reader, args ...string) error {
	ctr := exec.CommandContext(ctx, "ctr", append(append([]string{"--address", socket, "--namespace", "k8s.io", "images", "import"}, args...), "-")...)
	ctr.Stdin = archive
	if out, err := ctr.CombinedOutput(); err != nil {
		return fmt.Errorf("import images: %w: %s", err, out)
	}
	return nil
}

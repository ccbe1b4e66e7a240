package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodeprobe/nodeprobe/probe/volume"
	"github.com/nodeprobe/nodeprobe/status/node"
)

// newVolumes returns what finds the volumes in use.
func newVolumes(cfg *config, paths paths, log *slog.Logger, reg prometheus.Registerer) (*volume.Sampler, error) {
	sampler, err := volume.New(volume.Config{
		Procfs: paths.procfs, Rootfs: paths.rootfs, RootDirectory: cfg.RootDirectory,
		Timeout: cfg.StatfsTimeout, Logger: log, Registerer: reg,
	})
	if err != nil {
		return nil, fmt.Errorf("set up volumes: %w", err)
	}
	return sampler, nil
}

// volumeFacts puts the volumes in use into the Node's words; nil if none are known.
func volumeFacts(v volume.Snapshot) *node.Volumes {
	if !v.Known {
		return nil
	}
	facts := &node.Volumes{InUse: make([]v1.UniqueVolumeName, len(v.InUse)), Partial: v.Err != nil}
	for i, volume := range v.InUse {
		facts.InUse[i] = node.VolumeInUse(volume.Driver, volume.Handle)
	}
	return facts
}

// parseVolumeLimits reads volumeLimits, whose keys are drivers or resources.
func (p *policy) parseVolumeLimits(c *config) []problem {
	var problems []problem
	p.volumeLimits = node.VolumeLimits{}
	for _, key := range slices.Sorted(maps.Keys(c.VolumeLimits)) {
		text := c.VolumeLimits[key]
		name, err := volumeLimitName(key)
		limit, notNumber := strconv.ParseInt(text, 10, 64)
		_, twice := p.volumeLimits[name]
		switch {
		case err != nil:
		case twice:
			err = fmt.Errorf("%s has a limit already", name)
		case notNumber != nil || limit < 0:
			err = fmt.Errorf("%q is not a whole number, 0 or more", text)
		}
		if err != nil {
			problems = append(problems, problem{field: "volumeLimits", key: key, err: err})
			continue
		}
		p.volumeLimits[name] = limit
	}
	return problems
}

// mostDriverName is how long the name of a CSI driver may be.
const mostDriverName = 63

// volumeLimitName returns the resource that a driver, or the resource itself, stands
// for.
func volumeLimitName(key string) (v1.ResourceName, error) {
	if strings.HasPrefix(key, v1.ResourceAttachableVolumesPrefix) {
		if reasons := validation.IsQualifiedName(key); len(reasons) > 0 {
			return "", fmt.Errorf("not the name of a resource: %s", strings.Join(reasons, ", "))
		}
		return v1.ResourceName(key), nil
	}
	reasons := validation.IsDNS1123Subdomain(strings.ToLower(key))
	if len(key) > mostDriverName {
		reasons = append(reasons, validation.MaxLenError(mostDriverName))
	}
	if len(reasons) > 0 {
		return "", errors.New("not the name of a CSI driver: " + strings.Join(reasons, ", "))
	}
	return node.VolumeLimitName(key), nil
}

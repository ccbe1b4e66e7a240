package usage

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/internal/printable"
)

const (
	// maxOwners bounds the series: pods come and go, and one that is killed again and
	// again may get another name each time.
	maxOwners = 64

	// rememberOwner is how long an owner's series outlives the latest kill. To forget it
	// sooner would hide the next one: it would begin at 1 again.
	rememberOwner = 24 * time.Hour
)

var descVictims = prometheus.NewDesc("nodeprobe_oom_victims_total",
	"Processes killed for lack of memory while nodeprobe watched, by pod and container: the 64 that were hit last, within a day. Without labels: those of no pod.",
	[]string{"namespace", "pod", "uid", "container"}, nil)

// owner is whose a victim was; all fields are "" if it was no pod's.
type owner struct{ namespace, pod, uid, container string }

// killed is what an owner has lost.
type killed struct {
	first, latest time.Time
	count         uint64
}

// tally counts victims by their owners. Its methods may be called from any goroutine.
type tally struct {
	mu     sync.Mutex
	owners map[owner]killed
}

// newTally returns one that has counted none of no pod, so that there is always a series.
func newTally(now time.Time) tally { return tally{owners: map[owner]killed{{}: {first: now}}} }

// add counts a victim. Whose it was is what cgroups and directories are called, and labels
// must be valid UTF-8.
func (t *tally) add(o owner, now time.Time) {
	o = owner{printable.Text(o.namespace), printable.Text(o.pod), printable.Text(o.uid), printable.Text(o.container)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(now)
	k, known := t.owners[o]
	if !known {
		k.first = now
		if len(t.owners) > maxOwners {
			delete(t.owners, t.leastRecent())
		}
	}
	k.latest = now
	k.count++
	t.owners[o] = k
}

// forget drops the pods that have lost nothing for long. The caller holds the lock.
func (t *tally) forget(now time.Time) {
	maps.DeleteFunc(t.owners, func(o owner, k killed) bool { return o != owner{} && now.Sub(k.latest) > rememberOwner })
}

// leastRecent returns the pod's container whose latest kill is the longest ago. The caller
// holds the lock.
func (t *tally) leastRecent() (least owner) {
	for o, k := range t.owners {
		if o != (owner{}) && (least == owner{} || k.latest.Before(t.owners[least].latest)) {
			least = o
		}
	}
	return least
}

// Describe implements prometheus.Collector.
func (v *Victims) Describe(ch chan<- *prometheus.Desc) { ch <- descVictims }

// Collect implements prometheus.Collector. A series that begins at 1 says since when it
// counts, so that a Prometheus that asks for that takes the first kill for an increase.
func (v *Victims) Collect(ch chan<- prometheus.Metric) {
	if !v.cfg.Hooked {
		return // who the victims are is not known
	}
	t := &v.tally
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(time.Now())
	for o, k := range t.owners {
		ch <- prometheus.MustNewConstMetricWithCreatedTimestamp(descVictims, prometheus.CounterValue,
			float64(k.count), k.first, o.namespace, o.pod, o.uid, o.container)
	}
}
